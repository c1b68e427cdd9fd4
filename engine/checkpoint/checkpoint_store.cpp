#include "engine/checkpoint/checkpoint_store.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <sstream>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "engine/base/checksum.h"
#include "engine/base/regular_file.h"
#include "engine/checkpoint/agreement.h"
#include "engine/checkpoint/device_parts.h"
#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/checkpoint/step_folders.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLatest = "latest";
constexpr std::string_view kLatestBeingWritten = ".latest.tmp";

void check_tensor(const CheckpointTensor& tensor) {
  const Piece& piece = tensor.piece;
  check(tensor.data.numel() == piece.flat.size(), "\"{}\": {} elements are not a piece of {}",
        piece.tensor, tensor.data.numel(), piece.flat.size());
  check(piece.box_start.rank() == piece.shape.rank() &&
            piece.box_extent.rank() == piece.shape.rank() && 0 <= piece.flat.begin &&
            piece.flat.end <= piece.box_extent.numel(),
        "\"{}\": elements [{}, {}) of box {} in shape {}", piece.tensor, piece.flat.begin,
        piece.flat.end, piece.box_extent.to_string(), piece.shape.to_string());
}

/// The name of a piece in its file, "exp_avg/blocks.0.norm.weight[0:64]", with the box in front
/// of the range where it is not the whole tensor.
std::string key_of(const CheckpointTensor& tensor) {
  const Piece& piece = tensor.piece;
  std::string box;
  if (piece.box_extent != piece.shape) {
    for (int dim = 0; dim < piece.shape.rank(); ++dim) {
      box += fmt::format("{}{}:{}", dim == 0 ? "[" : ",", piece.box_start[dim],
                         piece.box_start[dim] + piece.box_extent[dim]);
    }
    box += "]";
  }
  return fmt::format("{}/{}{}[{}:{}]", tensor.state, piece.tensor, box, piece.flat.begin,
                     piece.flat.end);
}

/// Returns the checksum of the tensor's data.
std::uint64_t write_tensor(SafetensorsWriter& writer,
                           const CheckpointTensor& tensor,
                           DeviceParts& parts) {
  if (tensor.device == nullptr) {
    const std::span all(static_cast<const std::byte*>(tensor.data.data()),
                        static_cast<std::size_t>(tensor.data.bytes()));
    writer.write(all);
    return checksum(all);
  }
  RunningChecksum sum;
  parts.read(*tensor.device, tensor.data, [&](std::span<const std::byte> part) {
    writer.write_part(part);
    sum.add(part);
  });
  return sum.value();
}

/// Writes one rank's file and returns a manifest of its contents.
Manifest write_share(const DurableFiles& files,
                     const fs::path& folder,
                     int rank,
                     const TrainingState& state,
                     std::span<const CheckpointTensor> tensors) {
  std::vector<const CheckpointTensor*> filled;  // without pieces of no element
  for (const CheckpointTensor& tensor : tensors) {
    check_tensor(tensor);
    if (tensor.piece.flat.size() > 0) {
      filled.push_back(&tensor);
    }
  }
  std::stable_sort(filled.begin(), filled.end(),  // wide ones first: the format aligns nothing
                   [](const CheckpointTensor* a, const CheckpointTensor* b) {
                     return size_of(a->data.dtype()) > size_of(b->data.dtype());
                   });
  std::vector<SafetensorsDecl> declarations;
  std::int64_t largest_bytes = 0;
  for (const CheckpointTensor* tensor : filled) {
    largest_bytes = std::max(largest_bytes, tensor->data.bytes());
    declarations.push_back({key_of(*tensor),
                            std::string(stored_name(tensor->data.dtype())),
                            {tensor->piece.flat.size()}});
  }
  StoredFile file{.name = fmt::format("rank-{:05}.safetensors", rank)};
  SafetensorsWriter writer(files, folder / file.name, declarations, {{"format", "dstrain"}});
  file.bytes = writer.file_bytes();
  file.header_checksum = checksum(writer.header());

  DeviceParts parts(largest_bytes);
  Manifest share{.training = state, .files = {file}, .tensors = {}};
  if (!state.rollouts.empty()) share.rollouts = checksum(state.rollouts);
  for (std::size_t i = 0; i < filled.size(); ++i) {
    const Piece& piece = filled[i]->piece;
    StoredTensor& tensor =
        share.tensors.try_emplace(piece.tensor, StoredTensor{piece.shape, {}}).first->second;
    check(tensor.shape == piece.shape, "\"{}\" has shape {} and {}", piece.tensor,
          tensor.shape.to_string(), piece.shape.to_string());
    tensor.states[filled[i]->state].push_back(
        {.file = 0,
         .key = declarations[i].name,
         .range = {piece.box_start, piece.box_extent, piece.flat},
         .dtype = filled[i]->data.dtype(),
         .checksum = write_tensor(writer, *filled[i], parts)});
  }
  writer.finish();
  return share;
}

/// The manifest of all ranks' files together. A file missing here reveals a folder that the hosts
/// do not share.
Manifest whole_manifest(const std::vector<std::string>& shares, const fs::path& folder) {
  Manifest whole = parse_manifest(shares.front());
  for (std::size_t rank = 1; rank < shares.size(); ++rank) {
    merge(whole, parse_manifest(shares[rank]));
  }
  if (const auto fault = fault_of_files(whole, folder)) {
    throw StorageError(fmt::format(
        "{}; all ranks must see one folder: put the output on a file system that the hosts share",
        *fault));
  }
  const auto fault = fault_of_cover(whole);
  check(!fault.has_value(), "checkpoint not written: {}", fault.value_or(""));
  return whole;
}

}  // namespace

CheckpointStore::CheckpointStore(fs::path folder, DiskProbe probe)
    : folder_(std::move(folder)), files_(std::move(probe)) {}

void CheckpointStore::save(const TrainingState& state,
                           std::span<const CheckpointTensor> tensors,
                           std::int64_t keep,
                           Communicator& world) {
  check(keep >= 1, "at least one checkpoint must be kept, not {}", keep);
  const auto begin = std::chrono::steady_clock::now();
  const bool is_first = world.rank() == 0;
  const std::string name = step_name(state.step);
  const fs::path temporary = folder_ / temporary_name(name);
  std::int64_t bytes = 0;
  try {
    all_or_none(world, [&] {
      if (is_first) {
        const auto hold = hold_folder();
        if (owner_ == nullptr) {
          files_.make_folder(folder_);
        } else {
          files_.make_folder_in_parent(folder_);  // the run's own folder is never recreated
        }
        for (const StepFolder& dead : list_step_folders(folder_)) {
          if (dead.kind == StepFolder::Kind::kTemporary) {
            files_.remove_tree(dead.path);
          }
        }
        files_.make_folder_in_parent(temporary);
      }
    });
    Manifest share;
    all_or_none(world,
                [&] { share = write_share(files_, temporary, world.rank(), state, tensors); });
    const std::vector<std::string> shares = gather_texts(to_text(share), world);
    all_or_none(world, [&] {
      if (is_first) {
        const Manifest manifest = whole_manifest(shares, temporary);
        for (const StoredFile& file : manifest.files) {
          bytes += file.bytes;
        }
        for (const auto& [companion, content] : companions_.files()) {
          files_.write_file(temporary / companion, content);
        }
        if (!state.rollouts.empty()) {
          files_.write_file(temporary / kRolloutsName, state.rollouts);
        }
        commit(name, to_text(manifest));
      }
    });
    passed_over_.erase(folder_ / name);
  } catch (const std::exception&) {
    if (is_first && (owner_ == nullptr || owner_->is_mine())) {
      std::error_code ignored;  // the error that is on its way matters more
      fs::remove_all(temporary, ignored);
      fs::remove(folder_ / kLatestBeingWritten, ignored);
    }
    throw;
  }
  if (is_first) {
    remove_outdated(name, keep);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    spdlog::info("checkpoint saved path={} files={} bytes={} seconds={:.2f}",
                 (folder_ / name).string(), world.size(), bytes, seconds.count());
  }
}

std::optional<RunOwner::Hold> CheckpointStore::hold_folder() const {
  return owner_ == nullptr ? std::nullopt : std::optional(owner_->hold());
}

/// Turns a complete temporary folder into a checkpoint. Before the rename nothing changes for a
/// reader; after it the new one is found even if `latest` still names another.
void CheckpointStore::commit(const std::string& name, const std::string& manifest) const {
  const fs::path temporary = folder_ / temporary_name(name);
  const fs::path path = folder_ / name;
  const fs::path old = folder_ / old_name(name);
  files_.write_file(temporary / kManifestName, manifest);
  files_.sync_folder(temporary);

  const auto hold = hold_folder();
  // An incomplete checkpoint is removed first, so that it never replaces an older whole one.
  if (fs::exists(path) && fault_of(path)) {
    files_.remove_tree(path);
  }
  const bool replaces = fs::exists(path);
  if (replaces) {
    files_.remove_tree(old);
    files_.rename(path, old);
  }
  try {
    files_.rename(temporary, path);
  } catch (const StorageError&) {
    if (replaces) {
      std::error_code ignored;  // if this fails too, latest() finds the old one where it is
      fs::rename(old, path, ignored);
    }
    throw;
  }
  files_.sync_folder(folder_);

  files_.write_file(folder_ / kLatestBeingWritten, name + "\n");
  files_.rename(folder_ / kLatestBeingWritten, folder_ / kLatest);
  files_.sync_folder(folder_);
}

/// A failure here costs space, not the checkpoint, so it is only a warning. Incomplete checkpoints
/// do not count, so that they never displace a good one, and stay for those who want to examine
/// them.
void CheckpointStore::remove_outdated(const std::string& newest, std::int64_t keep) const {
  try {
    const auto hold = hold_folder();
    std::int64_t kept = 1;
    for (const StepFolder& entry : list_step_folders(folder_)) {
      if (entry.kind != StepFolder::Kind::kCheckpoint) {
        files_.remove_tree(entry.path);
        continue;
      }
      if (entry.path.filename() == newest || fault_of(entry.path) || kept++ < keep) {
        continue;
      }
      const fs::path old = folder_ / old_name(entry.path.filename().string());
      files_.remove_tree(old);
      files_.rename(entry.path, old);  // never a half-removed folder under a checkpoint's name,
      files_.sync_folder(folder_);     // nor one that a power cut brings back
      files_.remove_tree(old);
    }
  } catch (const std::runtime_error& error) {
    spdlog::warn("an outdated checkpoint stays and takes space: {}", error.what());
  }
}

void CheckpointStore::pass_over(const fs::path& checkpoint, std::string fault) {
  passed_over_.insert_or_assign(checkpoint, std::move(fault));
}

std::optional<std::string> CheckpointStore::fault_of(const fs::path& checkpoint) const {
  const auto known = passed_over_.find(checkpoint);
  return known != passed_over_.end() ? known->second : fault_of_checkpoint(checkpoint);
}

std::optional<fs::path> CheckpointStore::newest_name() const {
  for (const StepFolder& entry : list_step_folders(folder_)) {
    if (entry.kind != StepFolder::Kind::kTemporary) {
      return entry.path;
    }
  }
  return std::nullopt;
}

std::optional<fs::path> CheckpointStore::latest(Look look) const {
  const auto level = look == Look::kAndWarn ? spdlog::level::warn : spdlog::level::debug;
  const std::vector<StepFolder> found = list_step_folders(folder_);
  std::error_code error;
  const fs::path pointer = folder_ / kLatest;
  const bool has_pointer = fs::exists(pointer, error);
  constexpr std::int64_t kLongestPointer = 4096;
  const FileText pointer_text = read_regular_file(pointer.string(), kLongestPointer);
  if (has_pointer && !pointer_text.why.empty()) {
    throw CheckpointError(fmt::format(
        "{} {}; it should hold the name of the newest checkpoint's folder: remove it, and the "
        "newest whole one is used",
        pointer.string(), pointer_text.why));
  }
  std::string name;
  std::istringstream(pointer_text.text) >> name;

  // People roll a run back by editing `latest`: a whole checkpoint that it names wins.
  for (const StepFolder& entry : found) {
    if (entry.kind == StepFolder::Kind::kCheckpoint && entry.path.filename() == name &&
        !fault_of(entry.path)) {
      const StepFolder& newest = found.front();
      if (newest.kind == StepFolder::Kind::kCheckpoint && newest.step > entry.step &&
          !fault_of(newest.path)) {
        spdlog::log(level, "{} names {}; there is a newer one, {}", pointer.string(), name,
                    found.front().path.string());
      }
      return entry.path;
    }
  }
  std::string faults;
  for (const StepFolder& entry : found) {
    if (entry.kind == StepFolder::Kind::kTemporary) {
      continue;
    }
    if (const auto fault = fault_of(entry.path)) {
      faults += "; " + *fault;
      continue;
    }
    spdlog::log(level, "{} {}: using the newest whole checkpoint, {}{}", pointer.string(),
                has_pointer ? fmt::format("names \"{}\", which is not whole", name)
                            : std::string("is missing"),
                entry.path.string(), faults);
    return entry.path;
  }
  if (has_pointer || !faults.empty()) {
    throw CheckpointError(fmt::format(
        "{} holds no usable checkpoint; latest {}{}; to start over, "
        "move the folder away",
        folder_.string(),
        has_pointer ? fmt::format("names \"{}\"", name) : std::string("is missing"), faults));
  }
  return std::nullopt;
}

}  // namespace dstrain
