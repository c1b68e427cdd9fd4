// V vocabulary
#include "engine/generate/cached_model.h"

#include <algorithm>
#include <array>

namespace dstrain {

CachedModel::CachedModel(const ModelSpec& model,
                         const GenerationSizes& sizes,
                         const TransformerStage& stage,
                         const LayerContext& context)
    : model_(model),
      sizes_(sizes),
      stage_(stage),
      context_(context),
      texts_(static_cast<std::size_t>(sizes.texts)),
      rotates_as_long_(model.rope_scaling.is_long(sizes.positions)) {
  check(sizes.texts == 1 || reads_side_by_side(model, sizes.positions),
        "{} texts of a model whose rotation depends on their lengths", sizes.texts);
  for (Text& text : texts_) {
    text.tokens.reserve(static_cast<std::size_t>(sizes.positions));
  }
  parts_.reserve(texts_.size());
  tokens_.reserve(static_cast<std::size_t>(sizes.chunk_tokens));
  const std::vector<BufferDecl>& buffers = context.blueprint.buffers();
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].lifetime == Lifetime::kCache) caches_.push_back({static_cast<int>(i)});
  }
}

bool CachedModel::reads_side_by_side(const ModelSpec& model, std::int64_t positions) {
  return model.rope_scaling.is_long(1) == model.rope_scaling.is_long(positions);
}

void CachedModel::prepare() {
  stage_.prepare(context_);
}

std::span<const float> CachedModel::extend(std::span<const std::int32_t> tokens,
                                           const std::function<bool()>& before_chunk,
                                           std::int64_t text) {
  Text& of = at(text);
  const auto count = static_cast<std::int64_t>(tokens.size());
  check(count >= 1 && of.position + count <= sizes_.positions,
        "{} tokens behind {} of at most {} positions", count, of.position, sizes_.positions);
  const std::int64_t end = of.position + count;
  of.tokens.resize(static_cast<std::size_t>(of.position));
  of.tokens.insert(of.tokens.end(), tokens.begin(), tokens.end());
  rotate_as(end);
  while (of.position < end) {
    if (!before_chunk()) {
      return {};
    }
    const std::int64_t size = std::min(sizes_.chunk_tokens, end - of.position);
    parts_.assign(
        1, {.first_row = text * sizes_.positions, .positions = {of.position, of.position + size}});
    forward(std::span(of.tokens).subspan(static_cast<std::size_t>(of.position),
                                         static_cast<std::size_t>(size)));
    of.position += size;
  }
  fetch_logits();
  return logits(0);
}

void CachedModel::extend_each(std::span<const Next> next) {
  check(sizes_.texts > 1, "a model of {} positions extends a text alone", sizes_.positions);
  parts_.clear();
  tokens_.clear();
  for (const auto& [text, tokens] : next) {
    Text& of = at(text);
    const std::int64_t end = of.position + std::ssize(tokens);
    check(!tokens.empty() && end <= sizes_.positions, "{} tokens behind {} of at most {} positions",
          tokens.size(), of.position, sizes_.positions);
    parts_.push_back({.first_row = text * sizes_.positions, .positions = {of.position, end}});
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    of.tokens.resize(static_cast<std::size_t>(of.position));
    of.tokens.insert(of.tokens.end(), tokens.begin(), tokens.end());
    of.position = end;
  }
  check(std::ssize(tokens_) <= sizes_.chunk_tokens, "{} tokens at once, of at most {}",
        tokens_.size(), sizes_.chunk_tokens);
  forward(tokens_);
  fetch_logits();
}

std::span<const float> CachedModel::logits(std::size_t i) const {
  const auto width = static_cast<std::size_t>(model_.scores ? 1 : model_.vocab_size);
  return std::span(logits_).subspan(i * columns_, width);
}

void CachedModel::copy(std::int64_t from, std::int64_t to, std::int64_t position) {
  check(from != to && position <= at(from).position, "text {} is not text {}'s first {} tokens", to,
        from, position);
  for (const BufferRef cache : caches_) {
    const auto rows = [&](std::int64_t text) {
      const std::int64_t first = text * sizes_.positions;
      return context_.buffer(cache).rows(first, first + position);
    };
    context_.device.copy(rows(from), rows(to), context_.compute);
  }
  const std::vector<std::int32_t>& tokens = at(from).tokens;
  at(to).tokens.assign(tokens.begin(), tokens.begin() + position);
  at(to).position = position;
}

void CachedModel::rotate_as(std::int64_t text_tokens) {
  const bool is_long = model_.rope_scaling.is_long(text_tokens);
  if (is_long == rotates_as_long_) {
    return;
  }
  const Extension::Text whole{.positions = {0, text_tokens}};
  context_.extension = {.texts = {&whole, 1}, .tokens = text_tokens};
  stage_.prepare(context_);
  rotates_as_long_ = is_long;
  for (Text& text : texts_) {
    text.position = 0;
  }
}

void CachedModel::forward(std::span<const std::int32_t> tokens) {
  context_.extension = {.texts = parts_, .tokens = std::ssize(tokens)};
  context_.device.copy_from_host(tokens.data(), stage_.tokens(context_, 0), context_.compute);
  VisitHooks all_is_whole;
  stage_.forward(context_, all_is_whole, std::array{0});
  context_.compute.synchronize();  // `tokens` is the caller's
}

void CachedModel::fetch_logits() {
  const ConstTensor parts = stage_.next_logits(context_);
  const auto ranks = static_cast<std::size_t>(parts.dim(0));
  const auto texts = static_cast<std::size_t>(parts.dim(1));
  const auto columns = static_cast<std::size_t>(parts.dim(2));
  fetched_.resize(static_cast<std::size_t>(parts.numel()));
  context_.device.copy_to_host(parts, fetched_.data(), context_.compute);
  context_.compute.synchronize();
  columns_ = ranks * columns;
  if (ranks == 1) {
    logits_.swap(fetched_);
    return;
  }
  logits_.resize(fetched_.size());
  for (std::size_t part = 0; part < ranks * texts; ++part) {
    const auto from = fetched_.begin() + static_cast<std::ptrdiff_t>(part * columns);
    const std::size_t to = part % texts * columns_ + part / texts * columns;
    std::copy_n(from, columns, logits_.begin() + static_cast<std::ptrdiff_t>(to));
  }
}

void CachedModel::rewind(std::int64_t position, std::int64_t text) {
  check(0 <= position && position <= at(text).position, "position {} of {}", position,
        at(text).position);
  at(text).position = position;
}

}  // namespace dstrain
