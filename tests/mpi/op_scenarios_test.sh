#!/bin/bash
# Jobs of the op in which something goes wrong: op_scenarios_test.sh CASE MPIRUN PROGRAM.
# Exits 77 (skipped) where the machine forbids what the case needs.
. "$(dirname "${BASH_SOURCE[0]}")/job.sh"

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
      start_and_kill 4 endless calls
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
