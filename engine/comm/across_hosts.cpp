#include "engine/comm/across_hosts.h"

#include <algorithm>
#include <utility>

#include "engine/comm/rank_order_reduce.h"

namespace dstrain {
namespace {

/// Segments of scratch: one is filled while others leave.
constexpr std::int64_t kScratchSegments = 2;

/// A group of two has nothing to gain.
constexpr int kFewestMembers = 3;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// The size of a partial sum, in units of what is added.
std::int64_t widening(DType dtype) {
  return size_of(partial_dtype(dtype)) / size_of(dtype);
}

/// Bytes [begin, begin + bytes) of the buffer, of the slice that has this number.
struct Piece {
  int slice = 0;
  std::int64_t begin = 0;
  std::int64_t bytes = 0;
};

/// The slices of a buffer that one lane carries, cut into pieces. Only the last slice of a buffer
/// may be shorter than the others.
class Lane {
 public:
  Lane(std::vector<int> slices, std::int64_t slice_bytes, std::int64_t all_bytes, std::int64_t step)
      : slices_(std::move(slices)), slice_bytes_(slice_bytes), all_bytes_(all_bytes), step_(step) {
    for (const int slice : slices_) {
      pieces_ += ceil_div(end_of(slice) - begin_of(slice), step_);
    }
  }
  [[nodiscard]] std::int64_t pieces() const { return pieces_; }
  [[nodiscard]] Piece piece(std::int64_t number) const {
    const std::int64_t each = ceil_div(slice_bytes_, step_);
    const int slice = slices_[static_cast<std::size_t>(number / each)];
    const std::int64_t begin = begin_of(slice) + number % each * step_;
    return {.slice = slice, .begin = begin, .bytes = std::min(step_, end_of(slice) - begin)};
  }

 private:
  [[nodiscard]] std::int64_t begin_of(int slice) const {
    return std::min(slice * slice_bytes_, all_bytes_);
  }
  [[nodiscard]] std::int64_t end_of(int slice) const {
    return std::min(begin_of(slice) + slice_bytes_, all_bytes_);
  }
  std::vector<int> slices_;
  std::int64_t slice_bytes_;
  std::int64_t all_bytes_;
  std::int64_t step_;
  std::int64_t pieces_ = 0;
};

}  // namespace

/// One reduction, as this member takes part in it.
class AcrossHosts::Reduction {
 public:
  /// Member t gets slice t of `in` in `out`; or, if the two are one, each gets all of it.
  Reduction(AcrossHosts& across, const Call& call, ConstTensor in, Tensor out)
      : across_(across),
        mesh_(across.mesh_),
        layout_(across.layout_),
        call_(call),
        in_(static_cast<const std::byte*>(in.data())),
        out_(static_cast<std::byte*>(out.data())),
        scatters_(in.numel() != out.numel()),
        rank_(mesh_.rank()),
        host_(layout_.host_of(rank_)),
        last_host_(layout_.hosts() - 1),
        my_lane_(layout_.place_of(rank_)),
        step_(mesh_.segment_bytes() / widening(call.dtype)),
        parts_(mesh_, in.data(), Channel::kWindow),
        results_(mesh_, out.data(), Channel::kDirect),
        arriving_(mesh_, out.data(), out.bytes(), Channel::kDirect) {
    const std::int64_t slice = scatters_ ? out.numel() : ceil_div(in.numel(), across_.lanes_);
    for (int lane = 0; lane < across_.lanes_; ++lane) {
      std::vector<int> slices;
      for (int s = lane; s < (scatters_ ? mesh_.size() : lane + 1); ++s) {
        if (!scatters_ || lane_of_target(s) == lane) slices.push_back(s);
      }
      lanes_.emplace_back(std::move(slices), slice * size_of(call.dtype), in.bytes(), step_);
      most_pieces_ = std::max(most_pieces_, lanes_.back().pieces());
    }
    for (std::int64_t slot = 0; slot < kScratchSegments; ++slot) {
      leaving_.emplace_back(mesh_, scratch(slot), Channel::kWindow);
      finished_.emplace_back(mesh_, scratch(slot), Channel::kDirect);
    }
  }

  void run() {
    open();
    mesh_.stage(call_);
    mesh_.send_head_to_all();
    for (std::int64_t number = 0; number < PeerMesh::kLookAhead; ++number) {
      give_parts(number);
    }
    mesh_.receive_head_from_all(call_);
    for (std::int64_t number = 0; number < most_pieces_; ++number) {
      give_parts(number + PeerMesh::kLookAhead);
      if (carries(number)) add_host(lanes_[static_cast<std::size_t>(my_lane_)].piece(number));
      while (has_results_to_come() && arriving_.has_one(member(host_ + 1, my_lane_))) {
        hand_on_next();
      }
    }
    while (has_results_to_come()) {
      hand_on_next();
    }
    arriving_.finish();
    parts_.finish();
    results_.finish();
    for (std::int64_t slot = 0; slot < kScratchSegments; ++slot) {
      free_scratch(slot);
    }
    mesh_.finish_heads();
  }

 private:
  [[nodiscard]] int member(int host, int lane) const {
    return layout_.members(host)[static_cast<std::size_t>(lane)];
  }
  [[nodiscard]] const std::vector<int>& neighbours() const { return layout_.members(host_); }
  [[nodiscard]] bool carries(std::int64_t number) const {
    return my_lane_ < across_.lanes_ &&
           number < lanes_[static_cast<std::size_t>(my_lane_)].pieces();
  }
  [[nodiscard]] int lane_of_target(int target) const {
    return layout_.place_of(target) % across_.lanes_;
  }
  /// A member's share of a reduce-scatter.
  [[nodiscard]] std::int64_t slice_bytes() const { return call_.bytes() / mesh_.size(); }
  [[nodiscard]] std::byte* scratch(std::int64_t slot) const {
    return across_.scratch_.data() + slot * mesh_.segment_bytes();
  }

  /// Opens `out` to whoever sends results to this member.
  void open() {
    if (scatters_) {
      const int from = member(last_host_, lane_of_target(rank_));
      if (from != rank_) arriving_.open(from, ceil_div(slice_bytes(), step_));
      return;
    }
    for (int lane = 0; lane < across_.lanes_; ++lane) {
      if (lane != my_lane_) {
        arriving_.open(member(host_, lane), lanes_[static_cast<std::size_t>(lane)].pieces());
      } else if (host_ != last_host_) {
        arriving_.open(member(host_ + 1, lane), lanes_[static_cast<std::size_t>(lane)].pieces());
      }
    }
  }

  /// Gives the other lanes of this host this member's part of their next pieces.
  void give_parts(std::int64_t number) {
    for (int lane = 0; lane < across_.lanes_; ++lane) {
      const Lane& carried = lanes_[static_cast<std::size_t>(lane)];
      if (lane != my_lane_ && number < carried.pieces()) {
        const Piece piece = carried.piece(number);
        parts_.send(member(host_, lane), piece.begin, piece.bytes);
      }
    }
  }

  /// Adds this host's parts of a piece to what the hosts before have added, and sends it on.
  void add_host(const Piece& piece) {
    const void* const before = host_ == 0 ? nullptr : mesh_.receive(member(host_ - 1, my_lane_));
    inputs_.clear();
    for (const int neighbour : neighbours()) {
      inputs_.push_back(neighbour == rank_ ? in_ + piece.begin : mesh_.receive(neighbour));
    }
    const bool is_last = host_ == last_host_;
    const bool stays = is_last && (!scatters_ || piece.slice == rank_);
    const std::int64_t place = piece.begin - (scatters_ ? slice_bytes() * piece.slice : 0);
    const std::int64_t slot = next_slot_;
    std::byte* to = out_ + place;
    if (!stays) {
      next_slot_ = (next_slot_ + 1) % kScratchSegments;
      free_scratch(slot);
      to = scratch(slot);
    }
    const std::int64_t elements = piece.bytes / size_of(call_.dtype);
    continue_in_rank_order(before, inputs_, to, is_last ? Total::kFinal : Total::kPartial,
                           call_.dtype, call_.reduce, elements);
    if (before != nullptr) mesh_.release(member(host_ - 1, my_lane_));
    for (const int neighbour : neighbours()) {
      if (neighbour != rank_) mesh_.release(neighbour);
    }
    if (!is_last) {
      leaving_[static_cast<std::size_t>(slot)].send(member(host_ + 1, my_lane_), 0,
                                                    piece.bytes * widening(call_.dtype));
    } else if (!scatters_) {
      hand_on(piece);
    } else if (!stays) {
      finished_[static_cast<std::size_t>(slot)].send_to(piece.slice, place, 0, piece.bytes);
    }
  }

  /// Whether results of an all-reduce have yet to come from the next host.
  [[nodiscard]] bool has_results_to_come() const {
    return !scatters_ && host_ != last_host_ && carries(handed_on_);
  }

  void hand_on_next() {
    arriving_.wait_one(member(host_ + 1, my_lane_));
    hand_on(lanes_[static_cast<std::size_t>(my_lane_)].piece(handed_on_++));
  }

  /// Gives a result to the members of this host, and to the host before.
  void hand_on(const Piece& piece) {
    if (host_ > 0) results_.send(member(host_ - 1, my_lane_), piece.begin, piece.bytes);
    for (const int neighbour : neighbours()) {
      if (neighbour != rank_) results_.send(neighbour, piece.begin, piece.bytes);
    }
  }

  void free_scratch(std::int64_t slot) {
    leaving_[static_cast<std::size_t>(slot)].finish();
    finished_[static_cast<std::size_t>(slot)].finish();
  }

  AcrossHosts& across_;
  PeerMesh& mesh_;
  const HostLayout& layout_;
  const Call& call_;
  const std::byte* const in_;
  std::byte* const out_;
  const bool scatters_;
  const int rank_;
  const int host_;
  const int last_host_;
  const int my_lane_;        ///< at least across_.lanes_ if it carries none
  const std::int64_t step_;  ///< bytes of a piece, whose partial sums fill a segment
  std::vector<Lane> lanes_;
  std::int64_t most_pieces_ = 0;  ///< of any lane
  std::int64_t handed_on_ = 0;
  std::int64_t next_slot_ = 0;
  std::vector<const void*> inputs_;
  PeerMesh::Outgoing parts_;
  PeerMesh::Outgoing results_;
  std::vector<PeerMesh::Outgoing> leaving_;   ///< by slot of scratch: to the next host
  std::vector<PeerMesh::Outgoing> finished_;  ///< by slot of scratch: to the member it is for
  PeerMesh::Incoming arriving_;
};

AcrossHosts::AcrossHosts(PeerMesh& mesh)
    : mesh_(mesh),
      layout_(mesh.layout()),
      lanes_(layout_.fewest()),
      scratch_(static_cast<std::size_t>(buffer_bytes(mesh.size()))) {}

std::int64_t AcrossHosts::buffer_bytes(int members) {
  return members < kFewestMembers ? 0 : kScratchSegments * PeerMesh::segment_bytes(members);
}

// These compare the busiest host's traffic, counted in buffers. Where every member sends to every
// other, each of the L members on a host, out of N, sends (N - L) / N of a buffer; along the chain,
// a host sends what it has added up, and results.
bool AcrossHosts::suits_all_reduce(DType dtype) const {
  if (layout_.hosts() < 2 || !layout_.in_rank_order()) return false;
  const std::int64_t chain = layout_.hosts() == 2 ? widening(dtype) : widening(dtype) + 1;
  return 2 * most_sent_by_all() > chain * mesh_.size();
}

bool AcrossHosts::suits_reduce_scatter(DType dtype) const {
  if (layout_.hosts() < 2 || !layout_.in_rank_order()) return false;
  return most_sent_by_all() > widening(dtype) * mesh_.size();
}

bool AcrossHosts::suits_all_gather() const {
  return layout_.hosts() > 1 && layout_.hosts() < mesh_.size();
}

std::int64_t AcrossHosts::most_sent_by_all() const {
  std::int64_t most = 0;
  for (int host = 0; host < layout_.hosts(); ++host) {
    const auto here = static_cast<std::int64_t>(layout_.members(host).size());
    most = std::max(most, here * (mesh_.size() - here));
  }
  return most;
}

void AcrossHosts::all_reduce(const Call& call, Tensor inout) {
  Reduction(*this, call, inout, inout).run();
}

void AcrossHosts::reduce_scatter(const Call& call, ConstTensor in, Tensor out) {
  Reduction(*this, call, in, out).run();
}

void AcrossHosts::all_gather(const Call& call, Tensor out) {
  const int rank = mesh_.rank();
  const int host = layout_.host_of(rank);
  const auto& neighbours = layout_.members(host);
  const std::int64_t slice = out.bytes() / mesh_.size();
  const std::int64_t segment = mesh_.segment_bytes();
  const std::int64_t pieces = ceil_div(slice, segment);
  /// The member of a host to whom a member of another one sends.
  const auto receiver = [this](int source, int at) {
    const auto& there = layout_.members(at);
    return there[static_cast<std::size_t>(layout_.place_of(source)) % there.size()];
  };
  PeerMesh::Incoming arriving(mesh_, out.data(), out.bytes(), Channel::kDirect);
  PeerMesh::Outgoing leaving(mesh_, out.data(), Channel::kDirect);
  std::vector<std::int64_t> brings(static_cast<std::size_t>(mesh_.size()), 0);  // slices, by peer
  std::vector<int> sources;  // whose slices this member hands on
  for (int source = 0; source < mesh_.size(); ++source) {
    const int from = layout_.host_of(source) == host ? source : receiver(source, host);
    if (from == rank && source != rank) sources.push_back(source);
    if (source != rank) ++brings[static_cast<std::size_t>(from == rank ? source : from)];
  }
  for (const int peer : mesh_.peers()) {
    arriving.open(peer, pieces * brings[static_cast<std::size_t>(peer)]);
  }
  const auto send = [&](int source, std::int64_t number, int to) {
    const std::int64_t begin = number * segment;
    leaving.send(to, source * slice + begin, std::min(segment, slice - begin));
  };
  std::vector<std::int64_t> handed_on(sources.size(), 0);
  const auto hand_on = [&](std::size_t which) {
    arriving.wait_one(sources[which]);
    for (const int neighbour : neighbours) {
      if (neighbour != rank) send(sources[which], handed_on[which], neighbour);
    }
    ++handed_on[which];
  };
  mesh_.stage(call);
  mesh_.send_head_to_all();
  mesh_.receive_head_from_all(call);
  for (std::int64_t number = 0; number < pieces; ++number) {
    for (int other = 0; other < layout_.hosts(); ++other) {
      if (other != host) send(rank, number, receiver(rank, other));
    }
    for (const int neighbour : neighbours) {
      if (neighbour != rank) send(rank, number, neighbour);
    }
    for (std::size_t which = 0; which < sources.size(); ++which) {
      if (handed_on[which] < pieces && arriving.has_one(sources[which])) hand_on(which);
    }
  }
  for (std::int64_t number = 0; number < pieces; ++number) {
    for (std::size_t which = 0; which < sources.size(); ++which) {
      if (handed_on[which] == number) hand_on(which);
    }
  }
  arriving.finish();
  leaving.finish();
  mesh_.finish_heads();
}

}  // namespace dstrain
