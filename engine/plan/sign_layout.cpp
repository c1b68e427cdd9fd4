#include "engine/plan/sign_layout.h"

#include <algorithm>

namespace dstrain {
namespace {

constexpr std::int64_t kBits = 8;  // numbers a byte
constexpr std::int64_t kMessageUnit = 16;

std::int64_t in_units(std::int64_t count, std::int64_t unit) {
  return (count + unit - 1) / unit * unit;
}

}  // namespace

SignLayout::SignLayout(const ShardMap& shards, int ranks, int rank) : ranks_(ranks) {
  for (int unit = 0; unit < shards.num_units(); ++unit) {
    std::int64_t begin = 0;
    std::int64_t serving = 0;
    for (const ParamDecl& param : shards.unit(unit).params) {
      const std::int64_t end = begin + param.local_shape().numel();
      Row row{.unit = unit, .range = {begin, end}};
      row.chunk = in_units((end - begin + ranks - 1) / ranks, kBits);
      row.scale = static_cast<std::int64_t>(rows_.size() * sizeof(float));
      row.served.begin = std::min(end, begin + rank * row.chunk);
      row.served.end = std::min(end, row.served.begin + row.chunk);
      row.serving = serving;
      serving += in_units(row.served.size(), kMessageUnit);
      rows_.push_back(row);
      begin = end;
    }
    serving_.push_back(serving);
  }
  message_bytes_ = static_cast<std::int64_t>(rows_.size() * sizeof(float));
  for (Row& row : rows_) {
    row.signs = message_bytes_;
    message_bytes_ += row.chunk / kBits;
  }
  message_bytes_ = in_units(message_bytes_, kMessageUnit);
}

}  // namespace dstrain
