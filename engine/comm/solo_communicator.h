// A group of one: every collective is already complete. It touches nothing but an all_gather or
// reduce_scatter whose output lies elsewhere, which it copies.
#pragma once

#include <memory>
#include <string>

#include "engine/comm/rendezvous.h"

namespace dstrain {

/// The tensors lie on `device`, which must outlive it, or with nullptr in the host's memory.
std::unique_ptr<Communicator> make_solo_communicator(std::string name, Device* device = nullptr);

/// A world of one rank, whose groups are all of one.
std::unique_ptr<Rendezvous> make_solo_rendezvous();

}  // namespace dstrain
