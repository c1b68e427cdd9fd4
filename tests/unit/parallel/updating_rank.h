// UpdatingRank: a rank without a model: a few units of parameters and a strategy that sums, updates
// and gathers them from gradients given by a test.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/parallel/data_parallel.h"
#include "kernels/backend.h"

namespace dstrain::test {

struct UpdatingOptions {
  Blueprint blueprint;
  Mesh mesh{MeshDegrees{}};
  int rank = 0;
  Placement placement{};
  DType compute = DType::kF32;
  OptimizerConfig optimizer{};
  int slots = 4;  ///< windows in memory where states lie elsewhere
  std::optional<BlockCode> parameter_code{};
  std::optional<BlockCode> gradient_code{};
  Communicator* neighbour_group = nullptr;
  Communicator* across_group = nullptr;
};

class UpdatingRank {
 public:
  /// Element i of a unit, before the first update or of a gradient.
  using ValueOf = std::function<float(int unit, std::int64_t i)>;

  UpdatingRank(const UpdatingOptions& options,
               Backend& backend,
               std::vector<UnitGroup> groups,
               const ValueOf& start);
  UpdatingRank(const UpdatingRank&) = delete;
  UpdatingRank& operator=(const UpdatingRank&) = delete;

  /// Does backward of one micro-batch, which leaves these gradients, and then the update.
  StepStats step(const ValueOf& gradient, const StepParams& params);
  /// Goes over all units, forward and backward, where parameters are cut, and shows what a visit
  /// computes with.
  void walk(const std::function<void(const UnitVisit&, const std::vector<std::byte>&)>& see);
  /// The bytes of a unit in a region, in its own dtype.
  [[nodiscard]] std::vector<std::byte> bytes_of(RegionKind kind, int unit) const;
  /// The parameters of a unit that a region holds whole, in f32.
  [[nodiscard]] std::vector<float> parameters(int unit) const;
  [[nodiscard]] const MemoryPlan& memory() const { return memory_; }
  [[nodiscard]] const ShardMap& shards() const { return shards_; }
  [[nodiscard]] const Arena& arena() const { return arena_; }

 private:
  void set(const Site& site, Tensor tensor, std::int64_t first, int unit, const ValueOf& value);

  Blueprint blueprint_;
  BufferRef norm_total_;
  ShardMap shards_;
  OptimizerConfig optimizer_config_;
  OptimizerScratch scratch_;
  std::vector<GatherPlan> gathers_;
  MemoryPlan memory_;
  std::unique_ptr<DiskDevice> disk_;  // nullptr: nothing lies on a disk
  Arena arena_;
  Backend host_backend_;
  std::unique_ptr<Stream> host_stream_;
  Site host_;
  Site on_disk_;
  ParameterTable parameters_;
  ExecContext context_;
  std::unique_ptr<Stream> communication_;
  UnitGroups groups_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<DataParallel> data_parallel_;
};

}  // namespace dstrain::test
