#!/bin/bash
# Jobs in which something goes wrong: scenarios_test.sh CASE MPIRUN PROGRAM.
# Exits 77 (skipped) where the machine forbids what the case needs.
. "$(dirname "${BASH_SOURCE[0]}")/job.sh"

segments() { find /dev/shm -maxdepth 1 \( -name 'osc_sm.*' -o -name 'vader_segment.*' \) | sort; }

case $case_name in
  L01_kill) in_small_shm L01_kill_inside ;;
  L01_kill_inside)
    for round in $(seq 20); do
      start_and_kill 2 hold holds
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
    for _ in 1 2 3; do start_and_kill 2 hold holds; done
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
