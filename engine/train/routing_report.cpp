#include "engine/train/routing_report.h"

#include <algorithm>
#include <numeric>

#include "engine/config/arch/architecture.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

// The numbers of a layer that come before those of its experts. Counts below 2^53 are exact.
enum Number : std::size_t { kSequences, kTokens, kBalance, kSquares, kDropped, kBeforeExperts };

std::optional<double> mean(const std::vector<LayerRouting>& layers,
                           std::optional<double> LayerRouting::*loss) {
  double sum = 0.0;
  int count = 0;
  for (const LayerRouting& layer : layers) {
    if (!(layer.*loss)) continue;
    sum += *(layer.*loss);
    ++count;
  }
  return count == 0 ? std::nullopt : std::optional(sum / count);
}

}  // namespace

RoutingReport::RoutingReport(const ModelSpec& model, bool drops) : drops_(drops) {
  const Architecture architecture(model);
  std::size_t at = 0;
  for (std::size_t layer = 0; layer < architecture.layers.size(); ++layer) {
    const std::optional<ExpertsSpec>& experts = architecture.layers[layer].feed_forward.experts;
    if (!experts) continue;
    parts_.push_back({.layer = static_cast<std::int64_t>(layer),
                      .experts = experts->count,
                      .has_balance_loss = experts->balance_coefficient != 0.0F,
                      .has_z_loss = experts->z_coefficient != 0.0F,
                      .first = at});
    at += kBeforeExperts + static_cast<std::size_t>(experts->count);
  }
  numbers_.resize(at);
}

void RoutingReport::clear() {
  std::fill(numbers_.begin(), numbers_.end(), 0.0);
}

void RoutingReport::add(std::int64_t layer,
                        const ExpertTally::Layer& part,
                        std::array<double, 2> losses) {
  const auto found =
      std::find_if(parts_.begin(), parts_.end(), [&](const Part& of) { return of.layer == layer; });
  check(found != parts_.end(), "layer {} has no experts to report", layer);
  double* const numbers = &numbers_[found->first];
  numbers[kSequences] += static_cast<double>(part.sequences);
  numbers[kTokens] += static_cast<double>(part.tokens);
  numbers[kBalance] += losses[0];
  numbers[kSquares] += losses[1];
  numbers[kDropped] += static_cast<double>(part.dropped);
  for (std::size_t expert = 0; expert < part.rows.size(); ++expert) {
    numbers[kBeforeExperts + expert] += static_cast<double>(part.rows[expert]);
  }
}

std::vector<LayerRouting> RoutingReport::layers() const {
  std::vector<LayerRouting> layers;
  for (const Part& part : parts_) {
    const double* const numbers = &numbers_[part.first];
    LayerRouting& layer = layers.emplace_back();
    layer.layer = part.layer;
    layer.tokens = static_cast<std::int64_t>(numbers[kTokens]);
    if (part.has_balance_loss) {
      layer.balance_loss = numbers[kBalance] / std::max(1.0, numbers[kSequences]);
    }
    if (part.has_z_loss) {
      layer.z_loss = numbers[kSquares] / std::max(1.0, numbers[kTokens]);
    }
    if (drops_) {
      layer.dropped = static_cast<std::int64_t>(numbers[kDropped]);
    }
    for (std::int64_t expert = 0; expert < part.experts; ++expert) {
      layer.chosen.push_back(static_cast<std::int64_t>(numbers[kBeforeExperts + expert]));
    }
  }
  return layers;
}

double LayerRouting::busiest() const {
  const auto all = std::accumulate(chosen.begin(), chosen.end(), std::int64_t{0});
  const auto most = *std::max_element(chosen.begin(), chosen.end());
  return all == 0 ? 0.0
                  : static_cast<double>(most) * static_cast<double>(chosen.size()) /
                        static_cast<double>(all);
}

std::optional<double> mean_balance_loss(const std::vector<LayerRouting>& layers) {
  return mean(layers, &LayerRouting::balance_loss);
}

std::optional<double> mean_z_loss(const std::vector<LayerRouting>& layers) {
  return mean(layers, &LayerRouting::z_loss);
}

std::optional<DroppedChoices> dropped_choices(const std::vector<LayerRouting>& layers) {
  if (layers.empty() || !layers.front().dropped) return std::nullopt;
  DroppedChoices dropped;
  std::int64_t all = 0;
  for (const LayerRouting& layer : layers) {
    dropped.count += layer.dropped.value();
    all = std::accumulate(layer.chosen.begin(), layer.chosen.end(), all);
  }
  dropped.share =
      static_cast<double>(dropped.count) / static_cast<double>(std::max<std::int64_t>(1, all));
  return dropped;
}

double busiest_of(const std::vector<LayerRouting>& layers) {
  double busiest = 0.0;
  for (const LayerRouting& layer : layers) {
    busiest = std::max(busiest, layer.busiest());
  }
  return busiest;
}

}  // namespace dstrain
