#include "kernels/cpu/brief_spinning.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <unistd.h>

namespace dstrain {
namespace {

/// The number of spins, each with a pause instruction: 28 µs in all on a Zen 5, about 60 on a Xeon.
/// Sleeping at once costs a tiny model a third of its speed on an idle machine; with a third or a
/// tenth of these spins, quickstart's model got three quarters of its fair share on a busy one, and
/// ten times as many cost a tiny model most of what these leave it.
constexpr const char* kLooks = "1000";

}  // namespace

bool let_children_spin_briefly() {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) {
    return false;
  }
  return setenv("GOMP_SPINCOUNT", kLooks, 1) == 0;
}

void spin_briefly(char* const* argv) {
  if (!let_children_spin_briefly()) return;
  execv("/proc/self/exe", argv);
  std::fprintf(
      stderr,
      "dstrain: warning: cannot start again from /proc/self/exe (%s): compute threads will "
      "spin for milliseconds where they wait; set GOMP_SPINCOUNT=%s\n",
      std::strerror(errno), kLooks);
}

}  // namespace dstrain
