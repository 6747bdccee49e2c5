#!/bin/bash
# install_test.sh static|shared CMAKE CXX SOURCE BUILD WORK PUBLIC_HEADERS: installs, moves what was
# installed, and uses it from a project of its own and by pkg-config.
set -euo pipefail
kind=$1 cmake=$2 cxx=$3 source=$4 build=$5 work=$6 public_headers=$7

fail() {
  echo "FAILED: $*"
  exit 1
}

cached() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }

# The build under test is of one kind; the other is built here, without tests.
build_of_kind() {
  local shared=OFF now
  [[ $kind == shared ]] && shared=ON
  now=$(cached BUILD_SHARED_LIBS)
  [[ ${now:-OFF} == "$shared" ]] && return
  "$cmake" -S "$source" -B "$work/build" -G "$(cached CMAKE_GENERATOR)" \
    -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_BUILD_TYPE="$(cached CMAKE_BUILD_TYPE)" \
    -DCMAKE_CXX_COMPILER_LAUNCHER="$(cached CMAKE_CXX_COMPILER_LAUNCHER)" \
    -DROWBAND_MPI="$(cached ROWBAND_MPI)" -DROWBAND_CUDA="$(cached ROWBAND_CUDA)" \
    -DROWBAND_OPENBLAS="$(cached ROWBAND_OPENBLAS)" \
    -DBUILD_SHARED_LIBS="$shared" -DROWBAND_TESTS=OFF -DROWBAND_EXAMPLES=OFF
  "$cmake" --build "$work/build" --parallel 2
  build=$work/build
}

install_and_move() {
  "$cmake" --install "$build" --prefix "$work/first"
  mv "$work/first" "$prefix"
  ! grep -rIl -e "$work/first" -e "$source/" -e "$build/" "$prefix" ||
    fail "the files above name the folder of the build or of the installation"
}

# Exactly the public ones, each by itself, and none brings a library's headers with it.
check_headers() {
  local header used
  diff <(cd "$prefix/include" && find . -name '*.h' | sed 's|^\./||' | sort) \
    <(sort "$public_headers") || fail "installed (<) are not the public headers (>)"
  while read -r header; do
    echo "#include <$header>" >"$work/one.cc"
    "$cxx" -std=c++20 -Wall -Wextra -Werror -fsyntax-only -I"$prefix/include" "$work/one.cc" ||
      fail "$header does not compile alone"
    used=$("$cxx" -std=c++20 -M -I"$prefix/include" "$work/one.cc")
    # Not the library's own files: rowband/comm/mpi.h is one of them.
    ! tr -s $' \\\\' '\n' <<<"$used" | grep -v "^$prefix/" |
      grep -E '/(fmt|spdlog|nlohmann|hwy|CLI|gtest|mpi\.h|nccl\.h|asio|hwloc)' ||
      fail "$header includes the above"
  done <"$public_headers"
}

check_user() {
  local said
  said=$("$1") || fail "$1 exits with status $?"
  [[ $said == "every element is 512" ]] || fail "$1 says '$said'"
}

use_by_cmake() {
  "$cmake" -S "$source/tests/install/user" -B "$work/user" -DCMAKE_CXX_COMPILER="$cxx" \
    -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE=Release
  "$cmake" --build "$work/user"
  check_user "$work/user/user"
}

use_by_pkg_config() {
  local directory flags
  directory=$(dirname "$(find "$prefix" -name rowband.pc)")
  flags=$(PKG_CONFIG_PATH=$directory pkg-config --cflags --libs rowband)
  # shellcheck disable=SC2086
  "$cxx" -std=c++20 "$source/tests/install/user/main.cc" $flags \
    -Wl,-rpath,"$(dirname "$directory")" -o "$work/pkg_config_user"
  check_user "$work/pkg_config_user"
}

use_program() {
  "$prefix/bin/rowband" --version
  "$prefix/bin/rowband" plan --rows 100 --cols 256 --depth 128 --ranks 2 >/dev/null ||
    fail "the installed program does not run"
}

prefix=$work/prefix
rm -rf "$prefix" "$work/first" "$work/user"
mkdir -p "$work"
build_of_kind
install_and_move
check_headers
use_by_cmake
use_by_pkg_config
use_program
echo "passed: $kind"
