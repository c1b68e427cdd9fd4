// bench_checkpoint: measures how fast the training state of a config's model is written to disk and
// read back by a single rank. scripts/bench_checkpoint compares it with dd.
//
// The bytes come from a file in memory that is smaller than the state and is used over and over:
// only the path to the disk is measured, and a machine need not hold a whole state twice.
#include <chrono>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>

#include "engine/base/file_descriptor.h"
#include "engine/checkpoint/checkpoint_store.h"
#include "engine/comm/solo_communicator.h"
#include "engine/config/config_json.h"
#include "engine/train/make_run_plan.h"
#include "engine/train/training_state.h"
#include "kernels/core/check.h"

namespace dstrain::bench {
namespace {

using Clock = std::chrono::steady_clock;

/// The bytes of a file, for reading and writing; the file never changes.
class Pool {
 public:
  explicit Pool(const std::filesystem::path& path)
      : size_(static_cast<std::size_t>(std::filesystem::file_size(path))) {
    const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    check(static_cast<bool>(file), "cannot open {}", path.string());
    void* data =
        ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_POPULATE, file.get(), 0);
    check(data != MAP_FAILED, "cannot map {}", path.string());
    data_ = static_cast<std::byte*>(data);
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() { ::munmap(data_, size_); }

  /// The next part of the pool, from its front again where the rest is too small.
  std::byte* next(std::int64_t bytes) {
    const auto size = static_cast<std::size_t>(bytes);
    check(size <= size_, "a tensor of {} bytes does not fit the pool of {}", size, size_);
    if (at_ + size > size_) {
      at_ = 0;
    }
    return data_ + std::exchange(at_, at_ + (size + 63) / 64 * 64);
  }

 private:
  std::size_t size_;
  std::byte* data_ = nullptr;
  std::size_t at_ = 0;
};

std::vector<CheckpointTensor> whole_state(const std::string& config_path, Pool& pool) {
  LoadedConfig loaded = load_config(config_path, {});
  resolve_config(loaded, 1);
  const RunPlan plan = make_run_plan(loaded.config, 1, 0);
  std::vector<CheckpointTensor> tensors;
  for_each_state_part(plan, StateExtent::kMySlice, {}, [&](const StatePart& part) {
    const std::int64_t count = part.piece.flat.size();
    tensors.push_back({.state = part.state,
                       .piece = part.piece,
                       .data = {pool.next(count * size_of(part.dtype)), part.dtype, Shape{count}}});
  });
  return tensors;
}

int run(const std::string& action,
        const std::string& config,
        const std::filesystem::path& folder,
        const std::filesystem::path& pool_file) {
  spdlog::set_level(spdlog::level::warn);
  Pool pool(pool_file);
  const std::vector<CheckpointTensor> tensors = whole_state(config, pool);
  const std::int64_t bytes = std::accumulate(
      tensors.begin(), tensors.end(), std::int64_t{0},
      [](std::int64_t sum, const CheckpointTensor& tensor) { return sum + tensor.data.bytes(); });
  const auto alone = make_solo_communicator("bench");
  CheckpointStore store(folder);
  const auto begin = Clock::now();
  if (action == "save") {
    store.save({.step = 1}, tensors, 1, *alone);
  } else {
    const auto checkpoint = store.latest();
    check(checkpoint.has_value(), "{} holds no checkpoint", folder.string());
    CheckpointStore::load(*checkpoint, tensors);
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  fmt::print("{{\"bytes\": {}, \"seconds\": {}}}\n", bytes, seconds);
  return 0;
}

}  // namespace
}  // namespace dstrain::bench

int main(int argc, char** argv) {
  CLI::App app("Saves or loads the training state of a config's model");
  std::string action;
  std::string config;
  std::string folder;
  std::string pool;
  app.add_option("action", action)->required()->check(CLI::IsMember({"save", "load"}));
  app.add_option("--config", config)->required();
  app.add_option("--folder", folder, "of the checkpoints")->required();
  app.add_option("--pool", pool, "A file whose bytes stand for the tensors'")->required();
  CLI11_PARSE(app, argc, argv);
  return dstrain::bench::run(action, config, folder, pool);
}
