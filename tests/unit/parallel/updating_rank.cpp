#include "tests/unit/parallel/updating_rank.h"

#include <filesystem>
#include <utility>

namespace dstrain::test {
namespace {

/// Forward and backward, where parameters are cut.
std::vector<GatherPlan> gathers_of(const UpdatingOptions& options, const ShardMap& shards) {
  if (!options.placement.parameters.is_cut()) return {};
  UnitWalk walk;
  std::vector<std::int64_t> sizes;
  for (int unit = 0; unit < shards.num_units(); ++unit) {
    walk.push_back({.pass = Pass::kForward, .unit = unit, .reads = {unit}, .writes = {}});
    sizes.push_back(shards.padded_numel(unit));
  }
  for (int unit = shards.num_units() - 1; unit >= 0; --unit) {
    walk.push_back({.pass = Pass::kBackward, .unit = unit, .reads = {unit}, .writes = {unit}});
  }
  return {GatherPlan(walk, sizes, {})};
}

MemoryOptions memory_of(const UpdatingOptions& options,
                        const ShardMap& shards,
                        const std::vector<GatherPlan>& gathers) {
  const Moments moments = moments_of(options.optimizer);
  MemoryOptions memory{.compute_dtype = options.compute,
                       .first_moment = moments.first,
                       .second_moment = moments.second,
                       .placement = options.placement,
                       .secondary_ranks = options.mesh.degree(Axis::kDataInside),
                       .secondary_index = options.mesh.index(Axis::kDataInside, options.rank),
                       .parameter_code = options.parameter_code,
                       .gradient_code = options.gradient_code,
                       .overlap = shards.has_replicas(),
                       .gathered_elements = gathers.empty() ? 0 : gathers.front().size(),
                       .windows = {.most_elements = 4096, .slots = options.slots}};
  for (int unit = shards.num_units() - 1; unit >= 0; --unit) {
    memory.walk.push_back(
        {.pass = Pass::kBackward, .unit = unit, .reads = {unit}, .writes = {unit}});
  }
  return memory;
}

std::unique_ptr<DiskDevice> make_disk(const MemoryPlan& memory) {
  const std::string folder = std::filesystem::current_path().string();
  return memory.bytes(Space::kDisk) > 0
             ? std::make_unique<DiskDevice>(DiskOptions{.folder = folder, .key = "key"})
             : nullptr;
}

/// Before the first work of it.
void serve(DiskDevice* disk, Stream& stream, const Arena& arena) {
  if (disk != nullptr) {
    const Tensor windows = arena.state_windows();
    disk->serve(stream, {static_cast<std::byte*>(windows.data()),
                         static_cast<std::size_t>(windows.bytes())});
  }
}

}  // namespace

UpdatingRank::UpdatingRank(const UpdatingOptions& options,
                           Backend& backend,
                           std::vector<UnitGroup> groups,
                           const ValueOf& start)
    : blueprint_(options.blueprint),
      norm_total_(blueprint_.add_buffer({"gradient_norm", {1}, DType::kF64, Lifetime::kScratch})),
      shards_(blueprint_, options.mesh, options.rank),
      optimizer_config_(options.optimizer),
      scratch_(declare_optimizer(optimizer_config_, shards_, options.compute, blueprint_)),
      gathers_(gathers_of(options, shards_)),
      memory_(blueprint_, shards_, memory_of(options, shards_, gathers_)),
      disk_(make_disk(memory_)),
      arena_(blueprint_, memory_, *backend.device, disk_.get()),
      host_backend_(make_cpu_backend(1)),
      host_stream_(host_backend_.device->make_side_stream("states")),
      host_{.ops = *host_backend_.ops,
            .device = *host_backend_.device,
            .stream = *host_stream_,
            .arena = arena_},
      on_disk_{.ops = host_.ops,
               .device = disk_ ? static_cast<Device&>(*disk_) : host_.device,
               .stream = *host_stream_,
               .arena = arena_,
               .disk = disk_.get()},
      parameters_(shards_.num_units()),
      context_{.ops = *backend.ops,
               .device = *backend.device,
               .compute = backend.device->compute_stream(),
               .blueprint = blueprint_,
               .arena = arena_,
               .parameters = parameters_,
               .host = &host_,
               .disk = &on_disk_},
      communication_(backend.device->make_side_stream("communication")),
      groups_(shards_, std::move(groups)),
      optimizer_(make_optimizer({.config = optimizer_config_,
                                 .blueprint = blueprint_,
                                 .shards = shards_,
                                 .scratch = scratch_,
                                 .groups = groups_,
                                 .signs = memory_.options().signs,
                                 .states = options.placement.states})),
      data_parallel_(make_data_parallel({.context = context_,
                                         .shards = shards_,
                                         .memory = memory_,
                                         .gathers = gathers_,
                                         .optimizer = *optimizer_,
                                         .groups = groups_,
                                         .neighbour_group = options.neighbour_group,
                                         .across_group = options.across_group,
                                         .tensor_group = nullptr,
                                         .shared_heads_group = nullptr,
                                         .tied_group = nullptr,
                                         .world = nullptr,
                                         .communication = *communication_,
                                         .norm_total = arena_.buffer(norm_total_),
                                         .replica_gradients = {}})) {
  serve(disk_.get(), *host_stream_, arena_);
  for (int unit = 0; unit < shards_.num_units(); ++unit) {
    const Site site = context_.site(RegionKind::kMaster, unit);
    set(site, arena_.master(unit), memory_.owned(unit).begin, unit, start);
  }
  data_parallel_->refresh_parameters();
  host_stream_->synchronize();
  communication_->synchronize();
  context_.compute.synchronize();
}

/// f32 from elements first, first + 1, … of the unit; padding is zero.
void UpdatingRank::set(
    const Site& site, Tensor tensor, std::int64_t first, int unit, const ValueOf& value) {
  std::vector<float> values(static_cast<std::size_t>(tensor.numel()));
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    values[static_cast<std::size_t>(i)] =
        first + i < shards_.numel(unit) ? value(unit, first + i) : 0.0F;
  }
  site.device.copy_from_host(values.data(), tensor, site.stream);
  site.stream.synchronize();
}

StepStats UpdatingRank::step(const ValueOf& gradient, const StepParams& params) {
  for (int unit = shards_.num_units() - 1; unit >= 0; --unit) {
    const GradTarget target = data_parallel_->grad_target(unit, 0);
    set(context_.site(Space::kDevice), target.unit, 0, unit, gradient);
    data_parallel_->unit_grads_ready(unit, 0, /*last=*/true);
  }
  const StepStats stats = data_parallel_->step(params);
  host_stream_->synchronize();
  context_.compute.synchronize();
  communication_->synchronize();
  return stats;
}

void UpdatingRank::walk(
    const std::function<void(const UnitVisit&, const std::vector<std::byte>&)>& see) {
  data_parallel_->begin_walk(0, /*last=*/true);
  for (const UnitVisit& visit : gathers_.at(0).walk()) {
    data_parallel_->before_visit(visit);
    const ConstTensor whole = parameters_.whole(visit.unit);
    std::vector<std::byte> bytes(static_cast<std::size_t>(whole.bytes()));
    context_.device.copy_to_host(whole, bytes.data(), context_.compute);
    context_.compute.synchronize();
    see(visit, bytes);
    data_parallel_->after_visit(visit);
  }
}

std::vector<std::byte> UpdatingRank::bytes_of(RegionKind kind, int unit) const {
  const Tensor held = kind == RegionKind::kMaster ? arena_.master(unit) : arena_.unit(kind, unit);
  std::vector<std::byte> bytes(static_cast<std::size_t>(held.bytes()));
  const Site site = context_.site(kind, unit);
  site.device.copy_to_host(held, bytes.data(), site.stream);
  site.stream.synchronize();
  return bytes;
}

std::vector<float> UpdatingRank::parameters(int unit) const {
  const std::vector<std::byte> bytes = bytes_of(RegionKind::kParameters, unit);
  const auto* const values = reinterpret_cast<const float*>(bytes.data());
  return {values, values + bytes.size() / sizeof(float)};
}

}  // namespace dstrain::test
