# What the scripts of this folder share: sourced, never run. Needs bash.
# shellcheck shell=bash disable=SC2034
set -euo pipefail

# Physical, so that a script reached through a symbolic link still finds its own tree.
root=$(cd -P "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${ROWBAND_BUILD_DIR:-$root/build}
venv=$root/build/venv
logs=$root/build/logs
script=$(basename "$0")

# Lets one compiler cache serve every folder that the tree is checked out in.
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$root} CCACHE_NOHASHDIR=${CCACHE_NOHASHDIR:-1}

say() { echo "$script: $*" >&2; }

die() {
  say "$*"
  exit 1
}

# One compiler per core, and 1.5 GiB of free memory for each.
job_count() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/^MemAvailable:/ { print int($2 / 1572864) }' /proc/meminfo)
  ((memory < cores)) && cores=$memory
  echo $((cores > 0 ? cores : 1))
}

# step NAME COMMAND...: runs it without a word; its output goes to a log file, which is shown (its
# end) when the command fails.
step() {
  local name=$1 log started=$SECONDS
  shift
  mkdir -p "$logs"
  log=$logs/$script-${name// /-}.log
  printf '%s: %s ...' "$script" "$name" >&2
  if "$@" </dev/null >"$log" 2>&1; then
    echo " $((SECONDS - started)) s" >&2
    return
  fi
  echo " FAILED after $((SECONDS - started)) s" >&2
  echo "--- the end of $log:" >&2
  tail -n 60 "$log" >&2
  echo "--- $script: '$name' failed; all of its output: $log" >&2
  exit 1
}

# retry COMMAND...: three tries, for what a network does now and then.
retry() {
  local try
  for try in 1 2 3; do
    "$@" && return
    ((try == 3)) || { echo "try $try failed: $*"; sleep $((try * 5)); }
  done
  return 1
}

# configure FOLDER [-D...]: a build folder; one that exists keeps its generator.
configure() {
  local folder=$1 options=()
  shift
  [[ -f $folder/CMakeCache.txt ]] || options+=(-G Ninja)
  command -v ccache >/dev/null && options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  [[ -n ${CI:-} ]] && options+=(-DROWBAND_WERROR=ON)
  [[ -x $venv/bin/python ]] && options+=("-DPython3_EXECUTABLE=$venv/bin/python")
  cmake -S "$root" -B "$folder" "${options[@]}" "$@"
}

# compile FOLDER TARGET...
compile() {
  local folder=$1
  shift
  cmake --build "$folder" --parallel "$(job_count)" --target "$@"
}
