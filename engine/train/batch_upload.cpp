#include "engine/train/batch_upload.h"

#include <exception>

namespace dstrain {

BatchUpload::BatchUpload(Device& device, Stream& stream, std::int64_t tokens)
    : device_(device), stream_(stream), tokens_(tokens) {
  for (Buffer& buffer : buffers_) {
    buffer.memory =
        device.allocate_host(2 * tokens * size_of(DType::kI32), "token ids of a micro-batch");
  }
}

BatchUpload::~BatchUpload() {
  try {
    stream_.synchronize();
  } catch (const std::exception&) {  // a failure that somebody else has been told of
  }
}

void BatchUpload::upload(const LoadBatch& data,
                         std::int64_t first_sample,
                         Tensor inputs,
                         Tensor targets) {
  Buffer& buffer = buffers_[next_];
  next_ = (next_ + 1) % buffers_.size();
  if (buffer.copied.stream != nullptr) {
    buffer.copied.stream->wait_until(buffer.copied.ticket);
  }
  auto* const ids = static_cast<std::int32_t*>(buffer.memory.data());
  const auto size = static_cast<std::size_t>(tokens_);
  data(first_sample, {ids, size}, {ids + size, size});
  if (!inputs.empty()) {
    device_.copy_from_host(ids, inputs, stream_);
  }
  if (!targets.empty()) {
    device_.copy_from_host(ids + size, targets, stream_);
  }
  buffer.copied = stream_.record();
}

}  // namespace dstrain
