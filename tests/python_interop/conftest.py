import pathlib
import subprocess

import pytest


def pytest_addoption(parser):
    parser.addoption("--dump-weight", required=True, help="path of the dump_weight program")


class DumpWeight:
    """Runs the dump_weight program."""

    def __init__(self, program):
        self.program = str(pathlib.Path(program).resolve())

    def run(self, *arguments):
        """Its standard output; fails the test when the program does."""
        done = self.attempt(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def attempt(self, *arguments):
        return subprocess.run([self.program, *map(str, arguments)], capture_output=True, text=True,
                              timeout=60)


@pytest.fixture(scope="session")
def dump_weight(request):
    return DumpWeight(request.config.getoption("--dump-weight"))
