#include "engine/train/batch_upload.h"

#include <algorithm>
#include <exception>
#include <iterator>

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

}  // namespace

BatchUpload::BatchUpload(Device& device,
                         Stream& stream,
                         std::int64_t sequences,
                         std::int64_t sequence,
                         const DocumentRules& documents)
    : device_(device),
      stream_(stream),
      tokens_(sequences * sequence),
      sequence_(sequence),
      documents_(documents) {
  const int arrays = documents.attention ? 3 : 2;
  for (Buffer& buffer : buffers_) {
    buffer.memory = device.allocate_host((kSampleWords + arrays * tokens_) * size_of(DType::kI32),
                                         "token ids of a micro-batch");
  }
}

BatchUpload::~BatchUpload() {
  try {
    stream_.synchronize();
  } catch (const std::exception&) {  // a failure that has been reported elsewhere
  }
}

std::int64_t BatchUpload::upload(const LoadBatch& data, const Samples& samples, const Places& to) {
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
  const std::int64_t counting =
      to.want_tokens() ? upload_tokens(data, samples, memory + kSampleWords, to) : 0;
  buffer.copied = stream_.record();
  return counting;
}

std::int64_t BatchUpload::upload_tokens(const LoadBatch& data,
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
  if (documents_.attention) {
    const std::span<std::int32_t> positions(memory + 2 * size, inputs.size());
    find_document_positions(inputs, sequence, documents_.end, positions);
    device_.copy_from_host(positions.data(), to.document_positions, stream_);
  }
  if (!to.inputs.empty()) {
    device_.copy_from_host(inputs.data(), to.inputs, stream_);
  }
  if (!to.targets.empty()) {
    device_.copy_from_host(targets.data(), to.targets, stream_);
  }
  return count_targets(targets.first(static_cast<std::size_t>(samples.counted * sequence)));
}

}  // namespace dstrain
