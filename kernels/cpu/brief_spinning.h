// How the compute threads of a process wait for one another: they look again and again for some
// microseconds, then they sleep.
//
// OpenMP's own way is to look for milliseconds. Where every thread has a core to itself that is as
// good; on a machine that others use as well, a thread burns its turn on its core while it waits
// for one that has none: beside four busy processes on two cores, a rank of two threads came to
// less than half of its share with quickstart's model, to as little as a 250th with a tiny one. So
// it comes to nine tenths and to about half, and is as fast as before where it is alone
// (scripts/bench_threads).
//
// The library reads how long from the environment when it is loaded, before main(), and cannot be
// told later: hence a process that computes starts itself again. Those that only start others set
// the environment for them. Whoever sets OMP_WAIT_POLICY or GOMP_SPINCOUNT decides for himself.
#pragma once

namespace dstrain {

/// For processes that this one starts. True if the environment had neither variable and has
/// GOMP_SPINCOUNT now. Before there are other threads.
bool let_children_spin_briefly();

/// For this process: sets the environment and, if that changed it, runs the program again with
/// `argv`, in its place. At the start of main(). Returns where nothing had to change, and in the
/// second run; where the program cannot be run again, with a warning on stderr.
void spin_briefly(char* const* argv);

}  // namespace dstrain
