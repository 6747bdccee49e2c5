"""What counts as a block, and that a block that goes wrong is seen to."""

import contextlib
import io
import tempfile
import unittest
from pathlib import Path

from run_blocks import BadDocument, runnable_blocks, check


class Blocks(unittest.TestCase):
    def test_every_bash_block_counts_and_others_do_not(self):
        blocks = runnable_blocks(
            "a\n```bash\none\ntwo\n```\n```cmake\nx\n```\n```bash\nthree\n```\n")
        self.assertEqual([(b.line, b.text) for b in blocks], [(3, "one\ntwo"), (10, "three")])

    def test_a_reason_leaves_the_next_block_out_and_no_other(self):
        text = "<!-- not run: takes an hour -->\n```bash\none\n```\n```bash\ntwo\n```\n"
        self.assertEqual([b.not_run for b in runnable_blocks(text)], ["takes an hour", ""])

    def test_a_blank_line_may_stand_between(self):
        self.assertEqual(runnable_blocks("<!-- not run: x -->\n\n```bash\na\n```")[0].not_run, "x")

    def test_a_block_in_a_list_loses_its_indentation(self):
        blocks = runnable_blocks("1. x\n   ```bash\n   a\n     b\n   ```\n")
        self.assertEqual(blocks[0].text, "a\n  b")

    def test_a_cpp_block_counts_when_it_is_a_program(self):
        blocks = runnable_blocks("```cpp\nint x;\n```\n```cpp\nint main() {}\n```\n")
        self.assertEqual([(b.language, b.line) for b in blocks], [("cpp", 5)])

    def test_fences_inside_a_longer_fence_are_text(self):
        self.assertEqual(runnable_blocks("````text\n```bash\na\n```\n````\n"), [])

    def test_what_breaks_the_convention_is_refused(self):
        for text in ("```sh\na\n```", "```bash\na\n", "<!-- not run: -->\n```bash\na\n```",
                     "<!-- not run: x -->\ntext\n", "<!-- not run: x -->\n```cmake\na\n```"):
            with self.subTest(text), self.assertRaises(BadDocument):
                runnable_blocks(text)


class Runs(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.source, self.build = self.folder / "source", self.folder / "build"
        self.source.mkdir()
        (self.build / "bin").mkdir(parents=True)

    def check(self, text: str) -> tuple[int, str]:
        document = self.source / "doc.md"
        document.write_text(text)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            status = check(document, self.source, self.build, "c++")
        return status, said.getvalue()

    def test_blocks_share_a_folder_that_is_not_the_source(self):
        status, _ = self.check(
            "```bash\necho 1 > made\n```\n```bash\ntest -e made -a -e doc.md\n```\n")
        self.assertEqual(status, 0)
        self.assertFalse((self.source / "made").exists())

    def test_the_first_command_that_fails_fails_its_block(self):
        for command in ("false", "false | true", "rowband_is_not_there"):
            status, said = self.check(f"```bash\n{command}\ntrue\n```\n")
            self.assertEqual(status, 1, command)
            self.assertIn("doc.md:2: FAILED", said)

    def test_a_program_has_to_compile(self):
        (self.source / "part.h").write_text("inline int part() { return 0; }\n")
        program = '```cpp\n#include "part.h"\nint main() { return %s(); }\n```\n'
        self.assertEqual(self.check(program % "part")[0], 0)
        status, said = self.check(program % "parts")
        self.assertEqual(status, 1)
        self.assertIn("doc.md:2: FAILED", said)

    def test_programs_of_the_build_are_found(self):
        program = self.build / "bin" / "rowband"
        program.write_text("#!/bin/sh\necho built\n")
        program.chmod(0o755)
        status, _ = self.check(
            "```bash\n[[ $(rowband) == built ]]\n[[ $(build/bin/rowband) == built ]]\n```\n")
        self.assertEqual(status, 0)


if __name__ == "__main__":
    unittest.main()
