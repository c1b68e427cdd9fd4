// Makes the compute threads of a process spin for some microseconds while they wait for one
// another, and then sleep.
//
// OpenMP's default is to spin for milliseconds. Where every thread has a core to itself, that is as
// good; on a machine that others use as well, a thread burns its turn on its core while it waits
// for one that has none: beside four busy processes on two cores, a rank of two threads got less
// than half of its share with quickstart's model, and as little as a 250th with a tiny one. With
// brief spinning it gets nine tenths and about half, and is as fast as before where it is alone
// (scripts/bench_threads).
//
// The library reads the time from the environment when it is loaded, before main(), and it cannot
// be changed later: hence a process that computes starts itself again. Those that only start others
// set the environment for them. OMP_WAIT_POLICY and GOMP_SPINCOUNT, if set by the user, take
// precedence.
#pragma once

namespace dstrain {

/// Sets the environment for processes that this one starts. Returns true if it had neither variable
/// and has GOMP_SPINCOUNT now. Call it before there are other threads.
bool let_children_spin_briefly();

/// Does it for this process: sets the environment and, if that changed it, runs the program again
/// with `argv`, in its place. Call it at the start of main(). Returns where nothing had to change,
/// and in the second run; also where the program cannot be run again, with a warning on stderr.
void spin_briefly(char* const* argv);

}  // namespace dstrain
