#include "engine/plan/memory_components.h"

#include <numeric>

#include "kernels/core/check.h"

namespace dstrain {
namespace {

struct Names {
  std::string_view name;
  std::string_view key;
};

Names names_of(MemoryComponent component) {
  switch (component) {
    case MemoryComponent::kParameters:
      return {"parameters", "parameters"};
    case MemoryComponent::kGradients:
      return {"gradients", "gradients"};
    case MemoryComponent::kOptimizer:
      return {"optimizer states", "optimizer_states"};
    case MemoryComponent::kAttentionActivations:
      return {"activations: attention", "attention_activations"};
    case MemoryComponent::kMlpActivations:
      return {"activations: mlp", "mlp_activations"};
    case MemoryComponent::kNormActivations:
      return {"activations: norms", "norm_activations"};
    case MemoryComponent::kOtherActivations:
      return {"activations: token ids", "other_activations"};
    case MemoryComponent::kLogits:
      return {"logits", "logits"};
    case MemoryComponent::kGatherBuffers:
      return {"gather buffers", "gather_buffers"};
    case MemoryComponent::kBuckets:
      return {"communication buckets", "communication_buckets"};
    case MemoryComponent::kWorkspace:
      return {"workspace", "workspace"};
  }
  return {"?", "?"};
}

bool consists_of_buffers(RegionKind kind) {
  return kind == RegionKind::kSaved || kind == RegionKind::kScratch ||
         kind == RegionKind::kConstants || kind == RegionKind::kCache || kind == RegionKind::kWhole;
}

}  // namespace

std::string_view name_of(MemoryComponent component) {
  return names_of(component).name;
}

std::string_view key_of(MemoryComponent component) {
  return names_of(component).key;
}

ComponentBytes& ComponentBytes::operator+=(const ComponentBytes& other) {
  for (const MemoryComponent component : kMemoryComponents) {
    (*this)[component] += other[component];
  }
  return *this;
}

ComponentBytes& ComponentBytes::operator-=(const ComponentBytes& other) {
  for (const MemoryComponent component : kMemoryComponents) {
    (*this)[component] -= other[component];
  }
  return *this;
}

std::int64_t ComponentBytes::total() const {
  return std::accumulate(bytes_.begin(), bytes_.end(), std::int64_t{0});
}

MemoryComponent component_of(RegionKind kind) {
  switch (kind) {
    case RegionKind::kParameters:
    case RegionKind::kSecondary:
    case RegionKind::kWhole:
      return MemoryComponent::kParameters;
    case RegionKind::kGathered:
    case RegionKind::kParameterReads:
      return MemoryComponent::kGatherBuffers;
    case RegionKind::kCodedTraffic:
      return MemoryComponent::kBuckets;
    case RegionKind::kGradients:
      return MemoryComponent::kGradients;
    case RegionKind::kMaster:
    case RegionKind::kFirstMoment:
    case RegionKind::kSecondMoment:
    case RegionKind::kThirdMoment:
    case RegionKind::kUnsent:
    case RegionKind::kServersUnsent:
    case RegionKind::kStateWindows:
      return MemoryComponent::kOptimizer;
    case RegionKind::kGradientBuckets:
    case RegionKind::kWireBuckets:
      return MemoryComponent::kBuckets;
    case RegionKind::kConstants:
    case RegionKind::kCache:
      return MemoryComponent::kWorkspace;
    case RegionKind::kSaved:
    case RegionKind::kScratch:
      break;
  }
  fail_check(fmt::format("the region \"{}\" is of several components", name_of(kind)),
             std::source_location::current());
}

MemoryComponent component_of(const BufferDecl& buffer) {
  if (buffer.layer == LayerKind::kLogits) {
    return MemoryComponent::kLogits;
  }
  if (buffer.lifetime == Lifetime::kWhole) {
    return MemoryComponent::kParameters;
  }
  if (buffer.lifetime != Lifetime::kSaved) {
    return MemoryComponent::kWorkspace;
  }
  switch (buffer.layer) {
    case LayerKind::kAttention:
      return MemoryComponent::kAttentionActivations;
    case LayerKind::kMlp:
      return MemoryComponent::kMlpActivations;
    case LayerKind::kNorm:
      return MemoryComponent::kNormActivations;
    case LayerKind::kLogits:
    case LayerKind::kOther:
      break;
  }
  return MemoryComponent::kOtherActivations;
}

ComponentBytes component_bytes(const Blueprint& blueprint, const MemoryPlan& plan, Space space) {
  ComponentBytes bytes;
  for (const Region& region : plan.regions()) {
    if (region.space == space && !consists_of_buffers(region.kind)) {
      bytes[component_of(region.kind)] += region.bytes;
    }
  }
  for (const BufferDecl& buffer : blueprint.buffers()) {
    if (buffer.space == space) {
      bytes[component_of(buffer)] += MemoryPlan::bytes_of(buffer) * plan.slots_of(buffer);
    }
  }
  check(bytes.total() == plan.bytes(space), "components of {} bytes in a plan of {}", bytes.total(),
        plan.bytes(space));
  return bytes;
}

}  // namespace dstrain
