#!/bin/bash
# Jobs of the op in which something goes wrong: op_scenarios_test.sh CASE MPIRUN PROGRAM.
# Exits 77 (skipped) where the machine forbids what the case needs.
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

# Kills every rank of a job in the middle of its calls; the launcher only sees them go.
start_and_kill_ranks() {
  : >"$output"  # now, not when the shell in the background gets to it: no pids of an earlier job
  timeout --kill-after=5 60 "$mpirun" -n 4 "$program" endless >"$output" 2>&1 &
  local launcher=$! pids pid status
  for _ in $(seq 500); do
    pids=$(sed -n 's/^pid \([0-9]*\) calls$/\1/p' "$output")
    [[ $(wc -w <<<"$pids") -eq 4 ]] && break
    sleep 0.1
  done
  [[ $(wc -w <<<"$pids") -eq 4 ]] || fail "the job did not start"
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

case $case_name in
  D06_killed_in_call)
    # With recovery the launcher lets the survivors live, so that they must find out by themselves;
    # its own exit status says nothing then.
    timeout 120 "$mpirun" --enable-recovery -n 4 bash -c '"$@"; echo "exit status $?"' rank \
      "$program" killed_in_call >"$output" 2>&1
    expect_ok 3
    [[ $(grep -c '^exit status 1$' "$output") -eq 3 ]] || fail "expected 3 ranks to fail"
    [[ $(grep -c '^exit status 137$' "$output") -eq 1 ]] || fail "expected rank 2 to be killed"
    ;;
  L01_killed_in_calls) in_small_shm L01_inside ;;
  L01_inside)
    for round in $(seq 20); do
      start_and_kill_ranks
      left=$(find /dev/shm -mindepth 1)
      [[ -z $left ]] || fail "round $round left $left"
    done
    run 4 work || fail "a fresh job does not start"
    expect_ok 4
    ;;
  O01_small_shm) in_small_shm O01_inside ;;
  O01_inside)
    run 2 small_shm || fail "exit status $?"
    expect_ok 2
    ! grep -qi 'bus error\|signal 7' "$output" || fail "a bus error"
    ;;
  *) fail "no case $case_name" ;;
esac
echo "passed: $case_name"
