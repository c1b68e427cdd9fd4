#include "engine/plan/compression_layout.h"

#include <algorithm>
#include <cmath>

namespace dstrain {
namespace {

constexpr std::int64_t kLeastElements = 4096;

/// Parts begin on cache lines.
std::int64_t aligned(std::int64_t elements) {
  return (elements + ShardMap::kAlignment - 1) / ShardMap::kAlignment * ShardMap::kAlignment;
}

}  // namespace

CompressionLayout::CompressionLayout(const ShardMap& shards,
                                     const CompressionConfig& config,
                                     int ranks)
    : config_(config), ranks_(ranks) {
  for (int unit = 0; unit < shards.num_units(); ++unit) {
    std::int64_t begin = 0;
    const std::vector<ParamDecl>& params = shards.unit(unit).params;
    for (int index = 0; index < static_cast<int>(params.size()); ++index) {
      const ParamDecl& param = params[static_cast<std::size_t>(index)];
      const Range range{begin, begin + param.local_shape().numel()};
      if (is_compressed(param)) {
        add_row(unit, index, range, param.local_shape());
      } else {
        add_exact(unit, range);
      }
      begin = range.end;
    }
  }
  place();
}

bool CompressionLayout::is_compressed(const ParamDecl& param) const {
  const Shape& shape = param.local_shape();
  if (shape.rank() != 2 || shape.numel() < kLeastElements || param.share.copies > 1 ||
      param.share.partial_gradient || param.tied_across_stages) {
    return false;
  }
  return config_.kind == CompressionKind::kTopK ||
         2 * (shape[0] + shape[1]) * config_.rank < shape.numel();
}

void CompressionLayout::add_row(int unit, int param, Range range, const Shape& shape) {
  const bool joins = config_.kind == CompressionKind::kTopK && !rows_.empty() &&
                     rows_.back().unit == unit && rows_.back().range.end == range.begin;
  if (joins) {
    rows_.back().range.end = range.end;
  } else {
    rows_.push_back(
        {.unit = unit, .param = param, .range = range, .rows = shape[0], .columns = shape[1]});
  }
}

void CompressionLayout::add_exact(int unit, Range range) {
  const bool joins =
      !exact_.empty() && exact_.back().unit == unit && exact_.back().range.end == range.begin;
  if (joins) {
    exact_.back().range.end = range.end;
  } else {
    exact_.push_back({.unit = unit, .range = range});
  }
}

void CompressionLayout::place() {
  for (Row& row : rows_) {
    if (config_.kind == CompressionKind::kPowerSgd) {
      row.left = sums_;
      row.right = factors_;
      sums_ += aligned(row.rows * width());
      factors_ += aligned(width() * row.columns);
    } else {
      const std::int64_t bytes = code().bytes(row.range.size());
      row.code = message_bytes_;
      message_bytes_ += bytes;
      longest_code_ = std::max(longest_code_, bytes);
    }
  }
  for (Exact& exact : exact_) {
    exact.at = sums_;
    sums_ += aligned(exact.range.size());
  }
}

TopCode CompressionLayout::code() const {
  const double kept = config_.density * static_cast<double>(TopCode::kBlock);
  return {.keep = std::max<std::int64_t>(1, std::llround(kept))};
}

CompressionBuffers CompressionLayout::declare(Blueprint& blueprint) const {
  CompressionBuffers buffers;
  if (ranks_ == 1) return buffers;
  const auto add = [&](const char* name, std::int64_t elements, DType dtype, Lifetime lifetime) {
    return elements > 0 ? blueprint.add_buffer({name, {elements}, dtype, lifetime}) : BufferRef{};
  };
  buffers.sums = add("compressed_sums", sums_, DType::kF32, Lifetime::kScratch);
  buffers.factors = add("compressed_factors", factors_, DType::kF32, Lifetime::kConstant);
  buffers.start = add("compressed_start", factors_, DType::kF32, Lifetime::kConstant);
  buffers.codes = add("compressed_codes", ranks_ * message_bytes_, DType::kU8, Lifetime::kScratch);
  buffers.one_row = add("compressed_row", ranks_ * longest_code_, DType::kU8, Lifetime::kScratch);
  return buffers;
}

}  // namespace dstrain
