#include "engine/optim/sign_exchange.h"

#include "kernels/math/sign_code.h"

namespace dstrain {
namespace {

SignParts parts_of(const SignLayout& layout, const SignLayout::Row& row) {
  return {.count = layout.ranks(),
          .chunk = row.chunk,
          .stride = layout.message_bytes(),
          .signs = row.signs,
          .scale = row.scale};
}

Tensor elements(Tensor unit, Range range) {
  return unit.flat(range.begin, range.end);
}

}  // namespace

OptimizerScratch SignExchange::declare(Blueprint& blueprint) {
  return {{blueprint.add_buffer({"row_squares", {1}, DType::kF64, Lifetime::kScratch})}};
}

SignExchange::SignExchange(const OptimizerParts& parts, BufferRef squares)
    : layout_(parts.signs.value()),
      shards_(parts.shards),
      groups_(parts.groups),
      squares_(squares),
      counts_(static_cast<std::size_t>(layout_.ranks()), layout_.message_bytes()) {
  check(
      groups_.groups().size() == 1 && groups_.groups().front().replicas->size() == layout_.ranks(),
      "signs travel in one group, of {} ranks", layout_.ranks());
}

Tensor SignExchange::row(const Site& site, int unit) const {
  return site.arena.unit(RegionKind::kUnsent, unit).flat(0, shards_.numel(unit));
}

Tensor SignExchange::mean(const Site& site, const SignLayout::Row& row) const {
  return elements(site.arena.unit(RegionKind::kGradients, row.unit), row.range);
}

void SignExchange::exchange(const Site& site) {
  if (layout_.ranks() == 1) {
    take_own_rows(site);
    return;
  }
  Communicator& group = *groups_.groups().front().replicas;
  const std::int64_t one_way = layout_.bytes();
  const Tensor memory = site.arena.coded_traffic(2 * one_way);
  const Tensor messages = memory.flat(0, one_way);
  const Tensor received = memory.flat(one_way, 2 * one_way);
  encode_rows(site, messages);
  group.all_to_all(messages, counts_, received, counts_, Purpose::kGradient, site.stream);
  const std::int64_t begin = group.rank() * layout_.message_bytes();
  const Tensor answer = messages.flat(begin, begin + layout_.message_bytes());
  serve(site, received, answer);
  group.all_gather(answer, messages, Purpose::kGradient, site.stream);
  decode_means(site, messages);
}

void SignExchange::exchange_momenta(const Site& site,
                                    std::span<const UnitState> units,
                                    double beta1,
                                    double gradient_scale) {
  const auto share = static_cast<float>((1.0 - beta1) * gradient_scale);
  for (const UnitState& unit : units) {
    const Tensor to = row(site, unit.unit);
    site.ops.add_scaled(unit.first_moment, static_cast<float>(beta1), to, Write::kAdd, site.stream);
    site.ops.add_scaled(unit.gradient, share, to, Write::kAdd, site.stream);
  }
  exchange(site);
}

void SignExchange::encode_rows(const Site& site, Tensor messages) const {
  const Tensor squares = site.buffer(squares_);
  for (const SignLayout::Row& row : layout_.rows()) {
    const Tensor values = elements(site.arena.unit(RegionKind::kUnsent, row.unit), row.range);
    site.ops.sum_of_squares(values, squares, Write::kOverwrite, site.stream);
    site.ops.encode_signs(parts_of(layout_, row), values, squares, messages, site.stream);
  }
}

/// Adds up what all ranks say of this rank's chunks, and what it owes from last time, and codes
/// that.
void SignExchange::serve(const Site& site, Tensor received, Tensor answer) const {
  const Tensor squares = site.buffer(squares_);
  const float share = 1.0F / static_cast<float>(layout_.ranks());
  for (const SignLayout::Row& row : layout_.rows()) {
    if (row.served.size() == 0) continue;
    const Tensor mean = site.arena.unit(RegionKind::kServersUnsent, row.unit)
                            .flat(row.serving, row.serving + row.served.size());
    SignParts parts = parts_of(layout_, row);
    site.ops.sum_signs(parts, received, share, mean, Write::kAdd, site.stream);
    site.ops.sum_of_squares(mean, squares, Write::kOverwrite, site.stream);
    parts.count = 1;
    site.ops.encode_signs(parts, mean, squares, answer, site.stream);
  }
}

void SignExchange::decode_means(const Site& site, Tensor answers) const {
  for (const SignLayout::Row& row : layout_.rows()) {
    site.ops.decode_signs(parts_of(layout_, row), answers, mean(site, row), site.stream);
  }
}

/// A rank alone tells itself everything.
void SignExchange::take_own_rows(const Site& site) const {
  for (const SignLayout::Row& row : layout_.rows()) {
    const Tensor values = elements(site.arena.unit(RegionKind::kUnsent, row.unit), row.range);
    site.ops.cast(values, mean(site, row), site.stream);
    site.ops.zero(values, site.stream);
  }
}

void SignExchange::forget(const Site& site) const {
  for (int unit = 0; unit < shards_.num_units(); ++unit) {
    site.ops.zero(site.arena.unit(RegionKind::kUnsent, unit), site.stream);
    if (layout_.ranks() > 1 && layout_.serving(unit) > 0) {
      site.ops.zero(site.arena.unit(RegionKind::kServersUnsent, unit), site.stream);
    }
  }
}

}  // namespace dstrain
