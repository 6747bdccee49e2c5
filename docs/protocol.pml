/* Rowband's protocol as a Promela model: rules 2, 3, 4, 5 and 7 of docs/design.md, for every
   interleaving of W ranks and their copy queues over CALLS calls. Every datum is the number of the
   call that wrote it; an assertion fails when anything is read before it is there, or after a later
   call has overwritten it. A rank that waits for ever is an invalid end state.

   Each call's shape is chosen freely, the same on all ranks: every rank owns C chunks, or rank 0
   alone owns one (few rows), or nobody owns any (M = 0), or every rank refuses the call.

     spin -DW=2 -run -safety docs/protocol.pml      tests/model/check_protocol runs all variants

   Variants: -DDIRECT (no copy queues), -DIN_TURN (own chunks between the peers'), -DFP8 (gather
   through one slot of codes), -DSLOTS=, -DC=.
   Mutants: the -DMUTANT_... below, each breaking one rule; the checker must find each of them.
   Memory is sequentially consistent here; that release and acquire suffice in the code is for the
   thread sanitizer. Dead peers and failed calls are outside the model and have tests. */
#ifndef W
#define W 2
#endif
#ifndef C
#define C 2 /* chunks per band */
#endif
#ifndef CALLS
#define CALLS 3
#endif
#ifndef SLOTS
#define SLOTS 2 /* output slots: a result lives through the next SLOTS - 1 calls */
#endif
#ifdef MUTANT_LONGER_LIFE /* rule 7: the caller reads a result for one call too long */
#define KEPT SLOTS
#else
#define KEPT (SLOTS - 1)
#endif
#ifdef MUTANT_ONE_CARD
#define CARDS 1
#else
#define CARDS 2 /* call cards per peer, taken in turn */
#endif

#define ALL_OWN 1
#define ONE_OWNS 2
#define NO_ROWS 3
#define REFUSED 4
byte shape[CALLS + 1]; /* by call; calls are numbered from 1 */
#define CHUNKS(k, owner) \
  (shape[k] == ALL_OWN -> C : ((shape[k] == ONE_OWNS && owner == 0) -> 1 : 0))

#define AT(a, b, c) (((a) * W + (b)) * C + (c))
#define OUT(rank, call, owner, c) ((((rank) * SLOTS + (call) % SLOTS) * W + (owner)) * C + (c))
#define CARD(rank, peer, call) (((rank) * W + (peer)) * CARDS + (call) % CARDS)
/* The window of each rank. One slot of each: only outputs are kept for the caller. */
byte staging[W * W * C];     /* [rank][destination][chunk] partials to send */
byte received[W * W * C];    /* [rank][source][chunk] partials that arrived */
byte codes[W * W * C];       /* [rank][owner][chunk] results on the fp8 wire */
byte out[W * SLOTS * W * C]; /* [rank][slot][owner][chunk] results */
/* Its control words. */
byte scatter_flag[W * W * C]; /* [rank][source][chunk] */
byte gather_flag[W * W * C];  /* [rank][owner][chunk] */
byte card[W * W * CARDS];     /* [rank][peer][call % 2] */
/* What a rank tells its own copy queues. */
byte partial_done[W * W * C]; /* [rank][destination][chunk] */
byte result_done[W * C];      /* [rank][chunk] */

#ifdef MUTANT_FLAG_IS_A_BIT /* rule 4: a flag that does not say of which call it speaks */
#define EPOCH(k) 1
#else
#define EPOCH(k) (k)
#endif

/* Rule 3: the flag after the data. Reading a source takes time: it must be intact at the end. */
inline move(ready, to, from, flag, k) {
#ifdef MUTANT_FLAG_FIRST
  atomic { ready; flag = EPOCH(k) }
#endif
  atomic { ready; assert(from == k); to = from }
  atomic { assert(from == k); flag = EPOCH(k) }
}

#ifdef FP8
#define GATHERED(rank, k, owner, c) codes[AT(rank, owner, c)]
#else
#define GATHERED(rank, k, owner, c) out[OUT(rank, k, owner, c)]
#endif

#ifndef DIRECT
inline scatter_chunk_to(d) {
  move(partial_done[AT(r, d, c)] == k,
       received[AT(d, r, c)], staging[AT(r, d, c)], scatter_flag[AT(d, r, c)], k)
}
inline gather_to(d) {
  move(result_done[r * C + c] == k,
       GATHERED(d, k, r, c), GATHERED(r, k, r, c), gather_flag[AT(d, r, c)], k)
}

#ifdef QUEUE_PER_PEER
/* What a GPU's streams do: two queues from rank r to peer p, each with every second chunk, in order. That a warp of
   the kernel publishes the flags in order is left out, which allows more. */
proctype copy_queue(byte r; byte p; byte q) {
  byte k, c, n;
  for (k : 1 .. CALLS) {
    n = CHUNKS(k, p);
    for (c : 0 .. n - 1) {
      if
      :: c % 2 == q -> scatter_chunk_to(p)
      :: else -> skip
      fi
    }
    n = CHUNKS(k, r);
    for (c : 0 .. n - 1) {
      if
      :: c % 2 == q -> gather_to(p)
      :: else -> skip
      fi
    }
  }
}
#else /* the host engine's copy thread: all copies of rank r, in order */
proctype copy_queue(byte r) {
  byte k, c, n, d, p;
  for (k : 1 .. CALLS) {
    for (c : 0 .. C - 1) {
      for (d : 1 .. W - 1) {
        p = (r + d) % W;
        if
        :: c < CHUNKS(k, p) -> scatter_chunk_to(p)
        :: else -> skip
        fi
      }
    }
    n = CHUNKS(k, r);
    for (c : 0 .. n - 1) {
      for (d : 1 .. W - 1) {
        p = (r + d) % W;
        gather_to(p)
      }
    }
  }
}
#endif
#endif

inline publish_card() {
  for (d : 1 .. W - 1) {
    p = (r + d) % W;
    atomic {
#ifndef MUTANT_REFUSAL_RUNS_ON
      /* Card k overwrites card k - 2, which a peer may still have to read until it begins k - 1. A
         rank that ran k - 1 has seen that; one that refused it waits for that here. */
      if
      :: k > 1 && shape[k - 1] == REFUSED -> card[CARD(r, p, k - 1)] == k - 1
      :: else -> skip
      fi;
#endif
      card[CARD(p, r, k)] = k
    }
  }
}

/* So no rank ends call k before every rank has begun it. */
inline await_cards() {
  for (d : 1 .. W - 1) {
    p = (r + d) % W;
    atomic {
      card[CARD(r, p, k)] >= k;
      assert(card[CARD(r, p, k)] == k) /* beyond k: the code would take it for a refusal */
    }
  }
}

/* Rule 2: nothing here waits for anything remote. */
inline compute_peers_chunk(c) {
  for (d : 1 .. W - 1) {
    p = (r + d) % W;
    if
    :: c >= CHUNKS(k, p) -> skip
    :: else ->
#ifdef DIRECT
      received[AT(p, r, c)] = k;
      scatter_flag[AT(p, r, c)] = EPOCH(k)
#else
      atomic { staging[AT(r, p, c)] = k; partial_done[AT(r, p, c)] = k }
#endif
    fi
  }
}

inline compute_own_chunk(c) {
  if
  :: c >= CHUNKS(k, r) -> skip
  :: else ->
    atomic {
      for (d : 1 .. W - 1) {
        p = (r + d) % W;
#ifndef MUTANT_NO_WAIT_FOR_PARTIALS
        scatter_flag[AT(r, p, c)] == EPOCH(k);
#endif
        assert(received[AT(r, p, c)] == k)
      }
      out[OUT(r, k, r, c)] = k
    }
    atomic {
      for (d : 1 .. W - 1) { assert(received[AT(r, (r + d) % W, c)] == k) }
#ifdef FP8
      codes[AT(r, r, c)] = k
#endif
    }
#ifdef DIRECT
    for (d : 1 .. W - 1) {
      p = (r + d) % W;
      move(true, GATHERED(p, k, r, c), GATHERED(r, k, r, c), gather_flag[AT(p, r, c)], k)
    }
#else
    result_done[r * C + c] = k
#endif
  fi
}

inline compute_peers_bands() { for (c : 0 .. C - 1) { compute_peers_chunk(c) } }
inline compute_own_band() { for (c : 0 .. C - 1) { compute_own_chunk(c) } }
/* The plan's own_lag, at its least: an own chunk follows at once on the peers' same chunk. */
inline compute_chunks_in_turn() {
  for (c : 0 .. C - 1) {
    compute_peers_chunk(c);
    compute_own_chunk(c)
  }
}
/* Every own chunk but the first before the peers' same chunk. */
inline compute_own_chunks_ahead() {
  compute_peers_chunk(0);
  for (c : 0 .. C - 1) {
    compute_own_chunk(c);
    if
    :: c > 0 -> compute_peers_chunk(c)
    :: else -> skip
    fi
  }
}

inline take_results() {
  for (d : 1 .. W - 1) {
    p = (r + d) % W;
    n = CHUNKS(k, p);
    for (c : 0 .. n - 1) {
      atomic {
        true;
#ifndef MUTANT_NO_WAIT_FOR_RESULTS
        gather_flag[AT(r, p, c)] == EPOCH(k);
#endif
#ifdef FP8
        assert(codes[AT(r, p, c)] == k);
        out[OUT(r, k, p, c)] = k
#endif
      }
#ifdef FP8
      assert(codes[AT(r, p, c)] == k)
#endif
    }
  }
}

/* The caller reads this result and the KEPT ones before it. */
inline read_results() {
  atomic { for (age : 0 .. KEPT) {
    if
    :: age < k ->
      for (p : 0 .. W - 1) {
        for (c : 0 .. CHUNKS(k - age, p) - 1) { assert(out[OUT(r, k - age, p, c)] == k - age) }
      }
    :: else -> skip
    fi
  } }
}

proctype rank(byte r) {
  byte k, c, d, p, n, age;
  for (k : 1 .. CALLS) {
    publish_card();
    if
    :: shape[k] == REFUSED -> skip
    :: else ->
#ifdef MUTANT_OWN_BAND_FIRST
      compute_own_band();
      compute_peers_bands();
      await_cards();
#elif defined(MUTANT_OWN_CHUNKS_AHEAD)
      compute_own_chunks_ahead();
      await_cards();
#elif defined(IN_TURN)
      compute_chunks_in_turn();
      await_cards();
#else
      compute_peers_bands();
      await_cards();
      compute_own_band();
#endif
      take_results();
      read_results()
    fi
  }
}

init {
  byte r, d, k;
  atomic {
    for (k : 1 .. CALLS) {
      if
      :: shape[k] = ALL_OWN
      :: shape[k] = ONE_OWNS
#ifndef ROWS_ONLY /* for a smaller state space */
      :: shape[k] = NO_ROWS
      :: shape[k] = REFUSED
#endif
      fi
    }
    for (r : 0 .. W - 1) {
      run rank(r);
#ifndef DIRECT
#ifdef QUEUE_PER_PEER
      for (d : 1 .. W - 1) {
        run copy_queue(r, (r + d) % W, 0);
#if C > 1
        run copy_queue(r, (r + d) % W, 1)
#endif
      }
#else
      run copy_queue(r)
#endif
#endif
    }
  }
}
