// HostQuestion: what the launcher asks about a host before it starts ranks there, and the answer.
// The agent of that host answers (host_probe.h); the launcher decides.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dstrain::launcher {

enum class QuestionKind : std::uint8_t {
  kFolders = 1,    ///< can ranks work in `path`, and write below `paths`?
  kRoute = 2,      ///< from which address do packets to `address` leave?
  kInterface = 3,  ///< which address has the network interface `path`?
  kListen = 4,     ///< listen on `address`:`port` (0: any free one) for rank 0
  kConnect = 5,    ///< can `address`:`port` be connected to, within `timeout_ms`?
  kFiles = 6,      ///< size and hash of `paths`, seen from the folder `path`
  kFileSizes = 7,  ///< size alone
  kGpus = 8,       ///< which GPUs does a process there see?
  kScratch = 9,    ///< can the folder `path` hold scratch data on a disk, and how much?
};

struct HostQuestion {
  QuestionKind kind = QuestionKind::kFolders;
  std::string path{};
  std::vector<std::string> paths{};
  std::string address{};
  std::uint16_t port = 0;
  std::uint32_t timeout_ms = 0;

  template <typename Wire>
  void pass_fields(Wire& wire) {
    wire(kind, path, paths, address, port, timeout_ms);
  }
};

struct FileFacts {
  std::int64_t bytes = -1;  ///< -1: cannot be read
  std::uint64_t hash = 0;   ///< of the content, if it was asked for
  std::string error{};      ///< why it cannot be read

  template <typename Wire>
  void pass_fields(Wire& wire) {
    wire(bytes, hash, error);
  }
};

struct GpuReport {
  std::string model{};
  std::int64_t total_bytes = 0;
  std::int64_t free_bytes = -1;  ///< -1: not known
  std::int32_t capability = 0;   ///< 90 for compute capability 9.0
  std::string uuid{};            ///< as CUDA_VISIBLE_DEVICES takes it
  std::string bus_id{};
  std::string unusable{};  ///< why dstrain cannot compute on it, as a sentence's end

  template <typename Wire>
  void pass_fields(Wire& wire) {
    wire(model, total_bytes, free_bytes, capability, uuid, bus_id, unusable);
  }
};

struct HostAnswer {
  std::string error{};             ///< one sentence for the user; empty: it went well
  std::string address{};           ///< answers kRoute and kInterface
  std::uint16_t port = 0;          ///< answers kListen
  std::uint32_t microseconds = 0;  ///< the time that kConnect took
  std::vector<FileFacts> files{};  ///< answers kFiles, in the order of `paths`
  std::vector<GpuReport> gpus{};   ///< answers kGpus: slot s of the host is the s-th
  std::string driver{};            ///< answers kGpus: the driver's version
  std::int64_t free_bytes = -1;    ///< answers kScratch; -1: not known

  template <typename Wire>
  void pass_fields(Wire& wire) {
    wire(error, address, port, microseconds, files, gpus, driver, free_bytes);
  }
};

}  // namespace dstrain::launcher
