// The bytes of a memory plan by component: how many are optimizer states, how many are attention's
// activations. Every byte of the plan is in exactly one component.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "engine/plan/blueprint.h"
#include "engine/plan/memory_plan.h"

namespace dstrain {

enum class MemoryComponent : std::uint8_t {
  kParameters,            ///< what the model computes with
  kGradients,             ///< what the optimizer reads
  kOptimizer,             ///< f32 masters and moments
  kAttentionActivations,  ///< kept from forward to backward, for all micro-batches in flight
  kMlpActivations,
  kNormActivations,   ///< the residual stream is kept with the norm that reads it
  kOtherActivations,  ///< token ids
  kLogits,            ///< of one chunk of the tokens
  kGatherBuffers,     ///< ZeRO stage 3: units made whole
  kBuckets,           ///< gradients on their way to where they are kept
  kWorkspace          ///< what lives within one call, constant tables, and the cache of texts that
                      ///< are continued
};
constexpr std::array kMemoryComponents = {
    MemoryComponent::kParameters,       MemoryComponent::kGradients,
    MemoryComponent::kOptimizer,        MemoryComponent::kAttentionActivations,
    MemoryComponent::kMlpActivations,   MemoryComponent::kNormActivations,
    MemoryComponent::kOtherActivations, MemoryComponent::kLogits,
    MemoryComponent::kGatherBuffers,    MemoryComponent::kBuckets,
    MemoryComponent::kWorkspace};
/// "optimizer states", for people; "optimizer_states", for scripts.
std::string_view name_of(MemoryComponent component);
std::string_view key_of(MemoryComponent component);

/// Bytes by component.
class ComponentBytes {
 public:
  [[nodiscard]] std::int64_t operator[](MemoryComponent component) const {
    return bytes_[static_cast<std::size_t>(component)];
  }
  std::int64_t& operator[](MemoryComponent component) {
    return bytes_[static_cast<std::size_t>(component)];
  }
  ComponentBytes& operator+=(const ComponentBytes& other);
  ComponentBytes& operator-=(const ComponentBytes& other);
  [[nodiscard]] std::int64_t total() const;
  friend bool operator==(const ComponentBytes&, const ComponentBytes&) = default;

 private:
  std::array<std::int64_t, kMemoryComponents.size()> bytes_{};
};

/// The component of a region that is all one: every region but kSaved and kScratch, whose buffers
/// belong to several.
MemoryComponent component_of(RegionKind kind);
MemoryComponent component_of(const BufferDecl& buffer);

/// The bytes that the plan holds in a space; their sum is plan.bytes(space).
ComponentBytes component_bytes(const Blueprint& blueprint,
                               const MemoryPlan& plan,
                               Space space = Space::kDevice);

}  // namespace dstrain
