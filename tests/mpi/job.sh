# What the scripts of this folder share: sourced with CASE MPIRUN PROGRAM as the script's arguments.
set -u
case_name=$1 mpirun=$2 program=$3
output=$(mktemp)
trap 'rm -f "$output"' EXIT

fail() {
  echo "FAILED: $*"
  echo "--- output of the job:"
  cat "$output"
  exit 1
}

# run RANKS SCENARIO [mpirun options]: the job's output in $output, its exit status returned.
run() {
  local ranks=$1 scenario=$2
  shift 2
  timeout 120 "$mpirun" "$@" -n "$ranks" "$program" "$scenario" >"$output" 2>&1
}

# Exactly RANKS ranks say "ok", and none fails a check.
expect_ok() {
  [[ $(grep -c '^ok rank' "$output") -eq $1 ]] || fail "expected $1 ranks to say ok"
  ! grep -q 'FAILED' "$output" || fail "a rank failed"
}

# Starts RANKS ranks of SCENARIO, each of which says "pid N WORD" once it is where it is to die, kills
# them all (never the launcher) and waits for the end.
start_and_kill() {
  local ranks=$1 scenario=$2 word=$3
  : >"$output"  # here, and not by the job, so that no pid of the round before is read
  timeout --kill-after=5 60 "$mpirun" -n "$ranks" "$program" "$scenario" >"$output" 2>&1 &
  local launcher=$! pids pid status
  for _ in $(seq 500); do
    pids=$(sed -n "s/^pid \([0-9]*\) $word\$/\1/p" "$output")
    [[ $(wc -w <<<"$pids") -eq $ranks ]] && break
    sleep 0.1
  done
  [[ $(wc -w <<<"$pids") -eq $ranks ]] || fail "the job did not start"
  for pid in $pids; do
    [[ $(cat "/proc/$pid/comm") == "$(basename "$program")" ]] || fail "$pid is no rank"
  done
  for pid in $pids; do
    kill -9 "$pid" 2>/dev/null  # the launcher may be faster with the last ones
  done
  wait "$launcher"
  status=$?
  [[ $status -ne 0 ]] || fail "the launcher calls a killed job a success"
  [[ $status -ne 124 ]] || fail "the launcher did not end within 60 s"
}

# In a private /dev/shm of 64 MiB, as containers have it.
in_small_shm() {
  unshare --mount true 2>/dev/null || { echo "skipped: unshare --mount is not allowed"; exit 77; }
  exec unshare --mount bash -c 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"' \
    _ "$0" "$1" "$mpirun" "$program"
}
