#include "engine/parallel/disk_parameters.h"

#include <exception>

namespace dstrain {

DiskParameters::DiskParameters(const DataParallelParts& parts)
    : parts_(parts),
      disk_(*parts.context.site(Space::kDisk).disk),
      queue_(disk_.make_queue()),
      reader_(parts.context.site(Space::kHost).device.make_side_stream("parameters from the disk")),
      slots_(static_cast<std::size_t>(parts.memory.options().parameter_reads)) {
  auto* memory = static_cast<std::byte*>(parts.context.arena.parameter_reads().data());
  for (Slot& slot : slots_) {
    slot.memory = memory;
    memory += parts.memory.parameter_read_bytes();
  }
}

/// Waits for the copies, since what they wait for on their stream is the reader. A failure has been
/// reported by that stream, or comes too late to matter.
DiskParameters::~DiskParameters() {
  for (const Slot& slot : slots_) {
    try {
      if (slot.copied.stream != nullptr) slot.copied.stream->wait_until(slot.copied.ticket);
    } catch (const std::exception&) {
      continue;
    }
  }
}

void DiskParameters::bring(int unit, const Event& updated, Tensor place, Stream& stream) {
  if (place.numel() == 0) {
    return;
  }
  Slot& slot = slots_[next_++ % slots_.size()];
  const std::int64_t offset =
      disk_.offset_of(parts_.context.arena.unit(RegionKind::kParameters, unit).data());
  const std::int64_t first = offset / ScratchFile::kBlockBytes * ScratchFile::kBlockBytes;
  const std::int64_t bytes = ScratchFile::in_blocks(offset + place.bytes() - first);
  reader_->enqueue([this, first, bytes, updated, memory = slot.memory, copied = slot.copied] {
    for (const Event& event : {copied, updated}) {
      if (event.stream != nullptr) event.stream->wait_until(event.ticket);
    }
    queue_->wait(queue_->read(first, memory, bytes));
  });
  const Event read = reader_->record();
  stream.run([read] { read.stream->wait_until(read.ticket); });
  parts_.context.device.copy_from_host(slot.memory + (offset - first), place, stream);
  slot.copied = stream.record();
}

}  // namespace dstrain
