#!/bin/bash
# Jobs in which something goes wrong: scenarios_test.sh CASE MPIRUN PROGRAM.
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

# The job names at least RANKS times "ok", and never fails a check.
expect_ok() {
  [[ $(grep -c '^ok rank' "$output") -eq $1 ]] || fail "expected $1 ranks to say ok"
  ! grep -q 'FAILED' "$output" || fail "a rank failed"
}

segments() { find /dev/shm -maxdepth 1 \( -name 'osc_sm.*' -o -name 'vader_segment.*' \) | sort; }

# Starts a job that holds a window, kills its ranks (never the launcher) and waits for the end.
start_and_kill_ranks() {
  : >"$output"  # here, and not by the job, so that no pid of the round before is read
  timeout --kill-after=5 60 "$mpirun" -n 2 "$program" hold >"$output" 2>&1 &
  local launcher=$! pids pid status
  for _ in $(seq 500); do
    pids=$(sed -n 's/^pid \([0-9]*\) holds$/\1/p' "$output")
    [[ $(wc -w <<<"$pids") -eq 2 ]] && break
    sleep 0.1
  done
  [[ $(wc -w <<<"$pids") -eq 2 ]] || fail "the job did not start"
  for pid in $pids; do
    [[ $(cat "/proc/$pid/comm") == "$(basename "$program")" ]] || fail "$pid is no rank"
  done
  for pid in $pids; do
    kill -9 "$pid" 2>/dev/null  # the launcher may be faster with the second
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
  L01_kill) in_small_shm L01_kill_inside ;;
  L01_kill_inside)
    for round in $(seq 20); do
      start_and_kill_ranks
      [[ -z $(segments) ]] || fail "round $round left $(segments)"
    done
    run 2 work || fail "a fresh job does not start"
    expect_ok 2
    ;;
  L01_overfull) in_small_shm L01_overfull_inside ;;
  L01_overfull_inside)
    run 2 overfull || fail "exit status $?"
    expect_ok 2
    ! grep -qi 'bus error\|signal 7' "$output" || fail "a bus error"
    ;;
  L05_two_jobs)
    other=$(mktemp)
    trap 'rm -f "$output" "$other"' EXIT
    timeout 120 "$mpirun" -n 2 "$program" work >"$other" 2>&1 &
    second=$!
    run 2 work || fail "the first job failed"
    expect_ok 2
    wait "$second" || { cat "$other"; fail "the second job failed"; }
    ;;
  L04_live_job_survives)
    # Jobs come and are killed while another works on; nobody takes its segments away.
    other=$(mktemp)
    trap 'rm -f "$output" "$other"' EXIT
    (for _ in 1 2 3; do timeout 120 "$mpirun" -n 2 "$program" work || exit 1; done) >"$other" 2>&1 &
    second=$!
    for _ in 1 2 3; do start_and_kill_ranks; done
    wait "$second" || { cat "$other"; fail "the job beside failed"; }
    ;;
  D06_gone)
    run 3 gone && fail "the launcher calls a failed job a success"
    expect_ok 3
    ;;
  D03_late)
    run 3 late && fail "the launcher calls a failed job a success"
    expect_ok 3
    ;;
  D06_killed)
    # With recovery the launcher lets the survivors live, so that they must find out by themselves.
    run 3 killed --enable-recovery
    [[ $(grep -c '^ok rank' "$output") -eq 2 ]] || fail "expected ranks 0 and 2 to say ok"
    ;;
  *) fail "no case $case_name" ;;
esac
echo "passed: $case_name"
