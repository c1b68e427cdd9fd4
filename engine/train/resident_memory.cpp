#include "engine/train/resident_memory.h"

#include <fstream>
#include <string>

namespace dstrain {

ResidentMemory resident_memory() {
  constexpr std::int64_t kKiB = 1024;
  ResidentMemory memory;
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::int64_t kibibytes = 0;
    if (word == "VmHWM:" && status >> kibibytes) {
      memory.peak_bytes = kibibytes * kKiB;
    } else if ((word == "RssAnon:" || word == "RssShmem:") && status >> kibibytes) {
      memory.own_bytes += kibibytes * kKiB;
    }
  }
  return memory;
}

}  // namespace dstrain
