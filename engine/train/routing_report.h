// RoutingReport: what a step says of a model's experts: how many tokens chose each of them, in
// every layer, and the losses that keep them busy. Each rank adds what it knows of its own tokens
// and layers, and one all-reduce of host memory makes it that of the whole step.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/config/model_spec.h"
#include "engine/runtime/expert_tally.h"
#include "kernels/core/tensor.h"

namespace dstrain {

/// The routing of one layer in a step.
struct LayerRouting {
  std::int64_t layer = 0;                ///< of the model, counted from 0
  std::optional<double> balance_loss{};  ///< mean over sequences, without its coefficient
  std::optional<double> z_loss{};        ///< mean over tokens, likewise
  std::int64_t tokens = 0;
  std::vector<std::int64_t> chosen{};     ///< by expert: the tokens that chose it, taken or not
  std::optional<std::int64_t> dropped{};  ///< choices that their experts did not take

  /// The choices of the expert that most tokens chose, over the mean of all experts; 0: no token
  /// chose any.
  [[nodiscard]] double busiest() const;
};

class RoutingReport {
 public:
  RoutingReport() = default;
  /// `drops`: experts have a capacity.
  RoutingReport(const ModelSpec& model, bool drops);

  /// The count of f64 numbers that are summed over all ranks; 0: no layer has experts.
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(numbers_.size()); }

  void clear();
  /// Adds a rank's part of a layer. `losses` are Experts::losses().
  void add(std::int64_t layer, const ExpertTally::Layer& part, std::array<double, 2> losses);
  /// f64 [size()], to be summed.
  [[nodiscard]] Tensor sums() { return {numbers_.data(), DType::kF64, Shape{size()}}; }
  /// What the sums say; by layer, those without experts left out.
  [[nodiscard]] std::vector<LayerRouting> layers() const;

 private:
  struct Part {
    std::int64_t layer;
    std::int64_t experts;
    bool has_balance_loss;
    bool has_z_loss;
    std::size_t first;  // of its numbers
  };
  bool drops_ = false;
  std::vector<Part> parts_;
  std::vector<double> numbers_;  // of each part kBeforeExperts, then one an expert
};

/// The means over layers; none where no layer has that loss.
std::optional<double> mean_balance_loss(const std::vector<LayerRouting>& layers);
std::optional<double> mean_z_loss(const std::vector<LayerRouting>& layers);
/// The choices of all layers that were dropped, and their share of all; none where none can be.
struct DroppedChoices {
  std::int64_t count = 0;
  double share = 0.0;
};
std::optional<DroppedChoices> dropped_choices(const std::vector<LayerRouting>& layers);
/// The largest LayerRouting::busiest(). `layers` is not empty.
double busiest_of(const std::vector<LayerRouting>& layers);

}  // namespace dstrain
