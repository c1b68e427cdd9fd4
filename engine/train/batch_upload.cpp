#include "engine/train/batch_upload.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "engine/data/loss_rows.h"
#include "kernels/core/check.h"
#include "kernels/dropout.h"

namespace dstrain {
namespace {

/// Moves the first `kept` of every `length` tokens together.
std::span<std::int32_t> first_of_rows(std::span<std::int32_t> tokens,
                                      std::int64_t length,
                                      std::int64_t kept) {
  const std::int64_t rows = std::ssize(tokens) / length;
  for (std::int64_t row = 1; row < rows; ++row) {
    std::copy_n(tokens.begin() + row * length, kept, tokens.begin() + row * kept);
  }
  return tokens.first(static_cast<std::size_t>(rows * kept));
}

/// The part of every sequence that a rank has, or attends for with others.
enum class Whose : std::uint8_t { kOwn, kAttended };

/// Copies it, chunk by chunk; returns what follows the copy.
std::int32_t* copy_chunks(std::span<const std::int32_t> tokens,
                          std::int64_t sequence,
                          const ContextShape& context,
                          Whose whose,
                          std::int32_t* to) {
  for (int index = 0; index < context.chunks(); ++index) {
    const Range chunk = whose == Whose::kOwn
                            ? context.chunk(index, sequence)
                            : context.ring_chunk(context.ring_rank, index, sequence);
    for (auto row = tokens.begin(); row < tokens.end(); row += sequence) {
      to = std::copy(row + chunk.begin, row + chunk.end, to);
    }
  }
  return to;
}

}  // namespace

BatchUpload::BatchUpload(Device& device,
                         Stream& stream,
                         std::int64_t sequences,
                         std::int64_t sequence,
                         const DocumentRules& documents,
                         const ContextShape& context)
    : device_(device),
      stream_(stream),
      tokens_(sequences * sequence),
      sequence_(sequence),
      documents_(documents),
      context_(context) {
  for (Buffer& buffer : buffers_) {
    buffer.memory =
        device.allocate_host(host_bytes(tokens_, documents, context), "token ids of a micro-batch");
  }
}

std::int64_t BatchUpload::host_bytes(std::int64_t tokens,
                                     const DocumentRules& documents,
                                     const ContextShape& context) {
  const bool shares = context.ranks() > 1;
  const std::int64_t whole = documents.attention || shares ? 3 : 2;
  // Inputs, targets, positions, and the targets that are counted.
  const std::int64_t own = shares ? tokens / context.ranks() : 0;
  const std::int64_t attended = documents.attention ? own * context.heads : 0;
  const std::int64_t loss_rows = documents.are_packed ? 3 * tokens / context.ranks() : 0;
  return (kSampleWords + whole * tokens + 4 * own + attended + loss_rows) * size_of(DType::kI32);
}

BatchUpload::~BatchUpload() {
  try {
    stream_.synchronize();
  } catch (const std::exception&) {  // a failure that has been reported elsewhere
  }
}

BatchUpload::Uploaded BatchUpload::upload(const LoadBatch& data,
                                          const Samples& samples,
                                          const Places& to) {
  Buffer& buffer = buffers_[next_];
  next_ = (next_ + 1) % buffers_.size();
  if (buffer.copied.stream != nullptr) {
    buffer.copied.stream->wait_until(buffer.copied.ticket);
  }
  auto* const memory = static_cast<std::int32_t*>(buffer.memory.data());
  if (!to.first_sample.empty()) {
    const auto words = samples.use == BatchUse::kTraining ? first_sample_words(samples.first_sample)
                                                          : kNothingDropped;
    std::copy(words.begin(), words.end(), memory);
    device_.copy_from_host(memory, to.first_sample, stream_);
  }
  const Uploaded uploaded =
      to.want_tokens() ? upload_tokens(data, samples, memory + kSampleWords, to) : Uploaded{};
  buffer.copied = stream_.record();
  return uploaded;
}

BatchUpload::Uploaded BatchUpload::upload_tokens(const LoadBatch& data,
                                                 const Samples& samples,
                                                 std::int32_t* memory,
                                                 const Places& to) {
  const auto size = static_cast<std::size_t>(tokens_);
  const std::int64_t sequence = samples.sequence;
  std::span<std::int32_t> inputs(memory, size);
  std::span<std::int32_t> targets(memory + size, size);
  data(samples.first_sample, inputs, targets);
  if (sequence < sequence_) {
    inputs = first_of_rows(inputs, sequence_, sequence);
    targets = first_of_rows(targets, sequence_, sequence);
  }
  if (documents_.masks_borders) {
    ignore_targets_behind(documents_.end, inputs, targets);
  }
  const bool shares = context_.ranks() > 1;
  const std::span<std::int32_t> positions(memory + 2 * size,
                                          documents_.attention || shares ? inputs.size() : 0);
  if (documents_.are_samples) {
    take_document_ends(targets, sequence,
                       documents_.attention ? positions : std::span<std::int32_t>());
  }
  if (documents_.attention && !documents_.are_samples) {
    find_document_positions(inputs, sequence, documents_.end, positions);
  } else if (!documents_.attention) {
    for (std::size_t token = 0; token < positions.size(); ++token) {
      positions[token] = static_cast<std::int32_t>(static_cast<std::int64_t>(token) % sequence);
    }
  }
  std::int32_t* behind = positions.data() + positions.size();
  const auto copy = [&](std::span<const std::int32_t> from, Whose whose, const Tensor& place) {
    const std::int32_t* part = from.data();
    if (place.empty()) return part;
    if (shares) part = std::exchange(behind, copy_chunks(from, sequence, context_, whose, behind));
    device_.copy_from_host(part, place, stream_);
    return part;
  };
  copy(positions, Whose::kOwn, to.token_positions);
  copy(positions, Whose::kAttended, to.query_positions);
  copy(inputs, Whose::kOwn, to.inputs);
  const std::int32_t* const own_targets = copy(targets, Whose::kOwn, to.targets);
  Uploaded uploaded;
  if (!to.loss_rows.empty()) {
    const auto own = static_cast<std::size_t>(to.targets.numel());
    const LossRows of{.rows_N = {behind, own},
                      .places_N = {behind + own, own},
                      .targets_N = {behind + 2 * own, own}};
    uploaded.loss_rows = of.choose({own_targets, own});
    device_.copy_from_host(behind, to.loss_rows, stream_);
    behind += 3 * own;
  }
  const auto counted = targets.first(static_cast<std::size_t>(samples.counted * sequence));
  if (!shares) {
    uploaded.counted = count_targets(counted);
    return uploaded;
  }
  std::int32_t* const end = copy_chunks(counted, sequence, context_, Whose::kOwn, behind);
  check((end - memory + kSampleWords) * size_of(DType::kI32) <=
            host_bytes(tokens_, documents_, context_),
        "a micro-batch of {} tokens takes more of the host's memory than it has", tokens_);
  uploaded.counted = count_targets({behind, end});
  return uploaded;
}

}  // namespace dstrain
