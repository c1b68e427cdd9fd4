// Loops shared out over OpenMP threads. The bodies must not throw. What a task computes may not
// depend on the thread that runs it; `worker` only names its scratch memory.
#pragma once

#include <algorithm>
#include <cstdint>

#include <omp.h>

namespace dstrain {

/// Calls body(task, worker) for task = 0 … tasks - 1, each as soon as a thread is free.
template <typename Body>
void parallel_for(int threads, std::int64_t tasks, Body&& body) {
  if (threads <= 1 || tasks <= 1) {
    for (std::int64_t task = 0; task < tasks; ++task) {
      body(task, 0);
    }
    return;
  }
  const int team = static_cast<int>(std::min<std::int64_t>(threads, tasks));
#pragma omp parallel for num_threads(team) schedule(dynamic, 1)
  for (std::int64_t task = 0; task < tasks; ++task) {
    body(task, omp_get_thread_num());
  }
}

/// Calls body(begin, end) for pieces of at most `piece` elements that cover [0, n).
template <typename Body>
void parallel_pieces(int threads, std::int64_t n, std::int64_t piece, Body&& body) {
  parallel_for(threads, (n + piece - 1) / piece, [&](std::int64_t task, int /*worker*/) {
    const std::int64_t begin = task * piece;
    body(begin, std::min(begin + piece, n));
  });
}

}  // namespace dstrain
