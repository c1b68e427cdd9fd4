// GPU facts: the GPUs that this process sees, found without taking memory on any of them: what a
// launcher wants to know about a host before ranks start there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dstrain {

struct GpuFacts {
  std::string model;  ///< "NVIDIA H100 80GB HBM3"
  std::int64_t total_bytes = 0;
  /// Absent where the driver's library is missing, or knows only the whole GPU of which this is a
  /// part (MIG).
  std::optional<std::int64_t> free_bytes{};
  int capability = 0;  ///< 90 for compute capability 9.0
  std::string uuid{};  ///< "GPU-8d5a…", as nvidia-smi -L prints it and CUDA_VISIBLE_DEVICES takes
  std::string bus_id{};    ///< "0000:3b:00.0", as nvidia-smi lists it
  std::string unusable{};  ///< why this program cannot compute on it, as a sentence's end
};

struct GpusHere {
  std::vector<GpuFacts> gpus;  ///< in CUDA's order, which CUDA_VISIBLE_DEVICES sets
  std::string driver;          ///< "13.0": the newest CUDA that it serves
  std::string why_none;        ///< a sentence, where there is none
};
/// May take a second where no process keeps the driver loaded.
GpusHere look_at_gpus();

}  // namespace dstrain
