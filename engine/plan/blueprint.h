// Blueprint: what a stage of the model declares before anything is allocated: its parameters,
// unit by unit, and the buffers its layers need. One declaration feeds initial values, the memory
// plan, the shard map, the arena and checkpoints. Pure data: no device, no file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/plan/mesh.h"
#include "engine/plan/space.h"
#include "kernels/core/dtype.h"
#include "kernels/core/shape.h"
#include "kernels/math/weight_code.h"

namespace dstrain {

enum class Init : std::uint8_t {
  kNormal,
  kUniform,  ///< around 0
  kOnes,
  kZeros
};

/// How a parameter is divided among the ranks of a tensor-parallel group, as one of them sees it.
/// Every rank holds a box of the tensor; several may hold the same one.
struct TensorShare {
  Shape start{};   ///< first element of this rank's box; empty: of the whole tensor
  Shape extent{};  ///< of the box in memory; empty: the whole tensor. It may reach beyond the
                   ///< tensor in dim 0: padding, which stays zero
  int copies = 1;  ///< neighbouring ranks that hold this very box
  int copy = 0;    ///< which of them this rank is: the first counts in norms and saves
  bool partial_gradient = false;  ///< the gradient is the sum over the copies, not the same on each
};

struct ParamDecl {
  std::string name;  ///< global and topology-free: "blocks.3.attention.query.weight"
  Shape shape;       ///< whole tensor
  Init init = Init::kNormal;
  float deviation = 0.02F;     ///< of kNormal and kUniform
  bool decays = true;          ///< weight decay applies: matrices yes, norms and biases no
  bool hidden_matrix = false;  ///< a matrix inside a block: what Muon orthogonalises
  bool trained = true;         ///< false: it stays what it begins as
  double rate_scale = 1.0;     ///< the part of the learning rate that it is trained with
  TensorShare share{};
  /// A tied table lies on the first and on the last pipeline stage: both sum their gradients.
  bool tied_across_stages = false;
  bool tied_copy = false;  ///< the last stage's, which neither counts nor saves it
  /// Set for a matrix that is not trained and lies in few bits a number. It takes as many elements
  /// of its unit as the bytes of its code do; these are not numbers, and are only moved.
  std::optional<WeightCode> code{};
  std::int64_t code_elements = 0;

  /// Whether this rank is the one that adds the tensor (or its box) to norms and checkpoints.
  [[nodiscard]] bool counts() const { return share.copy == 0 && !tied_copy; }
  /// The shape that this rank holds in memory, padding included.
  [[nodiscard]] const Shape& local_shape() const {
    return share.extent.rank() == 0 ? shape : share.extent;
  }
  /// The part of the whole tensor that it holds: first element and extent.
  [[nodiscard]] Shape box_start() const;
  /// The elements of its unit that it takes.
  [[nodiscard]] std::int64_t unit_elements() const {
    return code ? code_elements : local_shape().numel();
  }
  [[nodiscard]] Shape box_extent() const;
};

/// The place of a parameter: its unit and first element in the unit's flat buffer. Parameters of a
/// unit lie back to back in declaration order, so neighbours may be used as one larger tensor
/// (q‖k‖v).
struct ParamRef {
  int unit = -1;
  int index = -1;  ///< within the unit
  friend bool operator==(const ParamRef&, const ParamRef&) = default;
};

/// A set of parameters that backward leaves together (a block, the embedding, the head): the grain
/// of gradient reduction, of sharding and of gathering.
struct UnitDecl {
  std::string name;  ///< "blocks.3"
  std::vector<ParamDecl> params;
  /// The axes along which ranks have the same unit and compute its gradient from other tokens: the
  /// gradient is summed over them, and it, the optimizer's states and the parameters may be cut
  /// over them.
  AxisSet replicated = kGradientAxes;
  /// False: nothing in it is trained. It then has parameters, in the compute dtype, but no
  /// gradient, no master apart and no moments; of one unit either all parameters are trained or
  /// none is.
  bool trained = true;
  [[nodiscard]] std::int64_t numel() const;
  /// First element of params[index] in the unit's flat buffer.
  [[nodiscard]] std::int64_t offset_of(int index) const;
};

enum class Lifetime : std::uint8_t {
  kSaved,     ///< from forward to backward: one per micro-batch in flight
  kScratch,   ///< within one call: layers that declare the same name share it
  kConstant,  ///< filled at start, or from step to step
  kCache,     ///< generation: what later calls read of earlier tokens
  kWhole      ///< copies of parameters: gathered to sample texts with, or a reference
};

/// The kind of layer whose activations a buffer holds, as reports group them.
enum class LayerKind : std::uint8_t { kNorm, kAttention, kMlp, kLogits, kOther };

struct BufferDecl {
  std::string name;  ///< "blocks.3/qkv" (saved) or "d_qkv" (shared scratch)
  Shape shape;
  DType dtype = DType::kF32;
  Lifetime lifetime = Lifetime::kScratch;
  LayerKind layer = LayerKind::kOther;
  /// The users of the buffer: the chunk of the model and the units that it was declared in. Without
  /// a unit, everything that the chunk does; kNoChunk means the optimizer step.
  int chunk = 0;
  std::vector<int> units{};
  bool in_backward_only = false;
  Space space = Space::kDevice;  ///< kHost: of a saved buffer, which layers copy to and from there

  static constexpr int kNoChunk = -1;
  [[nodiscard]] std::int64_t bytes() const { return shape.numel() * size_of(dtype); }
};

/// A tensor that is converted to 8 bits with a scale of its own (engine/runtime/fp8_scales.h).
struct ScaledTensorDecl {
  std::string name;  ///< global and topology-free: "blocks.3.attention.query/input"
  DType dtype = DType::kF8E4M3;
  friend bool operator==(const ScaledTensorDecl&, const ScaledTensorDecl&) = default;
};

/// Index into Blueprint::buffers.
struct BufferRef {
  int index = -1;
};

/// A tensor of the model that is state, in files and checkpoints as "parameter", but not trained:
/// no gradient, no optimizer and no norm knows of it. f32, in a buffer that every rank of the layer
/// has whole and moves alike.
struct UntrainedDecl {
  std::string name;  ///< global and topology-free, also the buffer's: "blocks.3.mlp.balancing_bias"
  Shape shape;
  std::int64_t block = 0;  ///< its index in the model
  int unit = -1;           ///< of the block
  BufferRef buffer{};
};

class Blueprint {
 public:
  /// Starts the rank's next chunk of the model, to which later declarations belong; if it is never
  /// called, there is one chunk.
  void begin_chunk();
  /// Ends the chunks: later declarations belong to none.
  void end_chunks();
  /// Starts a unit; later parameters and buffers belong to it. `replicated`: UnitDecl's.
  int begin_unit(std::string name, AxisSet replicated = kGradientAxes);
  /// Adds a unit whose parameters the current one computes with, and which stays the current one.
  int add_unit_beside(std::string name, AxisSet replicated);
  /// Adds a unit beside the current one, "blocks.3.frozen", in which those later parameters of this
  /// one lie that are not trained.
  int add_frozen_beside();
  /// Ends the unit: later buffers belong to none.
  void end_unit();
  ParamRef add_param(ParamDecl param);
  /// The same to a unit beside the current one.
  ParamRef add_param(int unit, ParamDecl param);
  /// Scratch of a name already declared returns the first one, grown to the larger shape in bytes.
  /// Fills BufferDecl::chunk,
  /// units and in_backward_only.
  BufferRef add_buffer(BufferDecl buffer);
  /// The same for a buffer that forward does not touch.
  BufferRef add_backward_buffer(BufferDecl buffer);

  /// Adds a tensor that is not trained to the current unit.
  BufferRef add_untrained(std::string name, Shape shape, std::int64_t block);

  /// Returns the tensor's number among this rank's.
  int add_scaled_tensor(ScaledTensorDecl tensor);

  /// A blueprint for the same model once more, whose parameters are not other ones: it has no units
  /// yet, and counts its buffers, whose names begin with `prefix`, behind those of this one.
  [[nodiscard]] Blueprint once_more(std::string prefix) const;
  /// Takes the buffers over that such a blueprint has beyond those of this one; they belong to no
  /// chunk and no unit. Fails unless it has the same units.
  void add_buffers_of(const Blueprint& other);

  [[nodiscard]] const std::vector<UnitDecl>& units() const { return units_; }
  [[nodiscard]] const std::vector<BufferDecl>& buffers() const { return buffers_; }
  [[nodiscard]] const std::vector<ScaledTensorDecl>& scaled_tensors() const {
    return scaled_tensors_;
  }
  [[nodiscard]] const std::vector<UntrainedDecl>& untrained() const { return untrained_; }
  [[nodiscard]] const ParamDecl& param(ParamRef ref) const;
  /// The number of parameters that this rank holds, coded or not, and that of those among them that
  /// are trained.
  [[nodiscard]] std::int64_t num_parameters() const;
  [[nodiscard]] std::int64_t num_trained() const;

 private:
  std::string prefix_;  // of names of buffers
  std::vector<UnitDecl> units_;
  std::vector<BufferDecl> buffers_;
  std::unordered_map<std::string, int> buffers_by_name_;
  std::vector<ScaledTensorDecl> scaled_tensors_;
  std::vector<UntrainedDecl> untrained_;
  int num_chunks_ = 0;
  int chunk_ = 0;    // that is being declared
  int unit_ = -1;    // the current one, or the last that was
  int frozen_ = -1;  // that beside it; none: -1
  bool in_unit_ = false;
};

}  // namespace dstrain
