#include "engine/checkpoint/merged_adapters.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "engine/checkpoint/model_tensors.h"
#include "engine/checkpoint/placed_tensor.h"
#include "engine/config/arch/adapters.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

constexpr std::string_view kWeight = ".weight";

}  // namespace

MergedAdapters::MergedAdapters(std::shared_ptr<const TensorSource> weights,
                               std::shared_ptr<const TensorSource> adapters,
                               const ModelSpec& model,
                               const AdapterConfig& config)
    : weights_(std::move(weights)),
      adapters_(std::move(adapters)),
      scale_(static_cast<float>(config.scale())),
      rank_(config.rank) {
  for (const AdaptedModule& module : linear_modules(model)) {
    shared_.push_back(module.parts);
  }
  // Tensors that were trained whole replace those of the weights, or are added to them.
  std::set<std::string_view> trained;
  const auto add = [&](const TensorSource& source) {
    for (const Entry& entry : source.entries()) {
      if (entry.state != "parameter" || is_adapter(entry.tensor)) continue;
      if (trained.insert(entry.tensor).second) entries_.push_back(entry);
    }
  };
  add(*adapters_);
  if (weights_ != adapters_) add(*weights_);
}

const TensorSource::Entry* MergedAdapters::find(const std::string& tensor) const {
  const auto entries = adapters_->entries();
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const Entry& entry) {
    return entry.tensor == tensor && entry.state == "parameter";
  });
  return found == entries.end() ? nullptr : &*found;
}

std::vector<float> MergedAdapters::whole(const Entry& entry) const {
  const Range all{0, entry.shape.numel()};
  std::vector<float> values(static_cast<std::size_t>(all.size()));
  adapters_->read(entry.state, piece_of({entry.tensor, entry.shape}, all),
                  {values.data(), DType::kF32, entry.shape});
  return values;
}

bool MergedAdapters::load_factors(const std::string& weight) const {
  if (factors_.of == weight) return true;
  if (!weight.ends_with(kWeight)) return false;
  const std::string name = weight.substr(0, weight.size() - kWeight.size());
  const Entry* const b = find(name + std::string(kAdapterB));
  if (b == nullptr) return false;
  const Entry* a = find(name + std::string(kAdapterA));
  for (const std::vector<std::string>& parts : shared_) {
    const auto is_this = [&](const std::string& part) { return name.ends_with("." + part); };
    const auto part = std::find_if(parts.begin(), parts.end(), is_this);
    if (a != nullptr || part == parts.end()) continue;
    a = find(name.substr(0, name.size() - part->size()) + parts.front() + std::string(kAdapterA));
  }
  check(a != nullptr && a->shape[0] == rank_ && b->shape[1] == rank_,
        "\"{}\" has an adapter in part, or not of rank {}", weight, rank_);
  factors_ = {.of = weight, .a = whole(*a), .b = whole(*b), .row_factors = {}};
  if (const Entry* const magnitude = find(name + std::string(kAdapterMagnitude))) {
    scale_rows(weight, *magnitude);
  }
  return true;
}

void MergedAdapters::scale_rows(const std::string& weight, const Entry& magnitude) const {
  const auto columns = std::ssize(factors_.a) / rank_;
  const std::vector<float> magnitudes = whole(magnitude);
  const Shape shape{std::ssize(magnitudes), columns};
  std::vector<float> factors;
  std::vector<float> row(static_cast<std::size_t>(columns));
  for (std::int64_t r = 0; r < shape[0]; ++r) {
    const Piece piece = piece_of({weight, shape}, {r * columns, (r + 1) * columns});
    weights_->read("parameter", piece, {row.data(), DType::kF32, Shape{columns}});
    add_product(piece, row.data());
    const double squares = std::inner_product(
        row.begin(), row.end(), row.begin(), 0.0, std::plus<>(),
        [](float a, float b) { return static_cast<double>(a) * static_cast<double>(b); });
    factors.push_back(
        static_cast<float>(magnitudes[static_cast<std::size_t>(r)] / std::sqrt(squares)));
  }
  factors_.row_factors = std::move(factors);
}

void MergedAdapters::add_product(const Piece& piece, float* values) const {
  const std::int64_t inputs = piece.shape[1];
  const std::int64_t width = piece.box_extent[1];
  for (std::int64_t k = piece.flat.begin; k < piece.flat.end;) {
    // The rest of a row of the box.
    const std::int64_t count = std::min(width - k % width, piece.flat.end - k);
    const std::int64_t row = piece.box_start[0] + k / width;
    const std::int64_t column = piece.box_start[1] + k % width;
    float* const to = values + (k - piece.flat.begin);
    for (std::int64_t r = 0; r < rank_; ++r) {
      const float factor = scale_ * factors_.b[static_cast<std::size_t>(row * rank_ + r)];
      const float* const a = factors_.a.data() + r * inputs + column;
      for (std::int64_t i = 0; i < count; ++i) {
        to[i] += factor * a[i];
      }
    }
    if (!factors_.row_factors.empty()) {
      const float factor = factors_.row_factors[static_cast<std::size_t>(row)];
      std::transform(to, to + count, to, [=](float value) { return value * factor; });
    }
    k += count;
  }
}

void MergedAdapters::read(const std::string& state, const Piece& piece, Tensor out) const {
  const bool is_whole = state == "parameter" && find(piece.tensor) != nullptr;
  if (is_whole && adapters_ != weights_) {
    adapters_->read(state, piece, out);
    return;
  }
  if (state != "parameter" || !load_factors(piece.tensor)) {
    weights_->read(state, piece, out);
    return;
  }
  std::vector<float> values(static_cast<std::size_t>(out.numel()));
  weights_->read(state, piece, {values.data(), DType::kF32, out.shape()});
  add_product(piece, values.data());
  convert_elements(reinterpret_cast<const std::byte*>(values.data()), DType::kF32,
                   static_cast<std::byte*>(out.data()), out.dtype(), out.numel());
}

}  // namespace dstrain
