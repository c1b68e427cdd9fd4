// ExecContext: what a layer needs to run: operations, the compute stream, its buffers and the
// parameters of its unit. A bundle of references made once by the engine; owns nothing.
#pragma once

#include <vector>

#include "engine/plan/blueprint.h"
#include "engine/runtime/arena.h"
#include "engine/runtime/site.h"
#include "kernels/core/device.h"
#include "kernels/graph_replay.h"
#include "kernels/ops.h"

namespace dstrain {

/// Says where the whole parameters of each unit are at the moment; the data-parallel strategy
/// decides that.
class ParameterTable {
 public:
  explicit ParameterTable(int num_units) : whole_(static_cast<std::size_t>(num_units)) {}

  void set(int unit, ConstTensor whole) { whole_.at(static_cast<std::size_t>(unit)) = whole; }
  void clear(int unit) { set(unit, {}); }
  [[nodiscard]] ConstTensor whole(int unit) const {
    const ConstTensor& tensor = whole_.at(static_cast<std::size_t>(unit));
    check(!tensor.empty(), "unit {} computes while its parameters are not gathered", unit);
    return tensor;
  }

 private:
  std::vector<ConstTensor> whole_;
};

class ExpertTally;
class Fp8Scales;
class InputCopies;

struct ExecContext {
  Ops& ops;
  Device& device;
  Stream& compute;
  const Blueprint& blueprint;
  Arena& arena;
  ParameterTable& parameters;
  GraphReplay* graphs = nullptr;   ///< of the backend; nullptr: it has none
  Fp8Scales* fp8 = nullptr;        ///< nullptr: no product is in 8 bits
  const Site* host = nullptr;      ///< for regions in the host's memory; nullptr: there are none
  const Site* disk = nullptr;      ///< likewise for regions on a disk
  ExpertTally* experts = nullptr;  ///< nullptr: there are none
  InputCopies* input_copies = nullptr;  ///< nullptr: blocks' inputs stay on the device
  bool without_adapters = false;        ///< layers compute as if they had none

  /// The site of work on what lies in a space.
  [[nodiscard]] Site site(Space space) const {
    if (space == Space::kDevice) {
      return {.ops = ops, .device = device, .stream = compute, .arena = arena};
    }
    const Site* const site = space == Space::kHost ? host : disk;
    check(site != nullptr, "work on memory of which the plan has no region");
    return *site;
  }
  /// The site of work on a unit that regions of a kind hold.
  [[nodiscard]] Site site(RegionKind kind, int unit) const { return site(arena.space(kind, unit)); }
  [[nodiscard]] Tensor buffer(BufferRef ref, int slot = 0) const { return arena.buffer(ref, slot); }
  /// A buffer that only some plans have; empty where it was not declared.
  [[nodiscard]] Tensor optional_buffer(BufferRef ref, int slot = 0) const {
    return ref.index < 0 ? Tensor{} : buffer(ref, slot);
  }
  [[nodiscard]] Fp8Scales& fp8_scales() const {
    check(fp8 != nullptr, "products in 8 bits without scales");
    return *fp8;
  }
  [[nodiscard]] ExpertTally& expert_tally() const {
    check(experts != nullptr, "experts without their tally");
    return *experts;
  }
  /// A parameter as the model computes with it.
  [[nodiscard]] ConstTensor param(ParamRef ref) const {
    return param_view(blueprint, parameters.whole(ref.unit), ref);
  }
  /// `count` neighbouring parameters as one tensor.
  [[nodiscard]] ConstTensor params(ParamRef first, int count, Shape shape) const {
    return param_view(blueprint, parameters.whole(first.unit), first, count, shape);
  }
  /// The bytes of a parameter that is coded (ParamDecl::code).
  [[nodiscard]] ConstTensor coded(ParamRef ref) const {
    const std::int64_t elements = blueprint.param(ref).code_elements;
    const ConstTensor held =
        param_view(blueprint, parameters.whole(ref.unit), ref, 1, Shape{elements});
    return {held.data(), DType::kU8, Shape{held.bytes()}};
  }
};

/// The tensor into which backward writes the gradients of one unit, and whether it adds to it. Of
/// parameters that are not trained, which lie in another unit, gradients of matrices are not
/// computed. Those of vectors come with what else an operation computes: they go where nothing is
/// read.
struct GradTarget {
  const Blueprint* blueprint = nullptr;
  Tensor unit;  ///< f32, flat; empty where nothing of it is trained
  Write write = Write::kOverwrite;
  Tensor unwanted{};  ///< f32, flat: place for the largest vector that is not trained

  /// Whether the gradient is wanted of a parameter that is or is not in the unit.
  [[nodiscard]] bool wants(ParamRef ref) const {
    return blueprint->units().at(static_cast<std::size_t>(ref.unit)).trained;
  }
  [[nodiscard]] Tensor param(ParamRef ref) const {
    if (wants(ref)) return param_view(*blueprint, unit, ref);
    const Shape& shape = blueprint->param(ref).local_shape();
    return unwanted.flat(0, shape.numel()).view(shape);
  }
  [[nodiscard]] Tensor params(ParamRef first, int count, Shape shape) const {
    return param_view(*blueprint, unit, first, count, shape);
  }
};

/// Those of a block, whose experts may be a unit of their own.
struct BlockGradients : GradTarget {
  GradTarget experts{};
};

}  // namespace dstrain
