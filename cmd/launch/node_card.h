// NodeCard: what a node that was started by hand says of itself to the one that leads, so that both
// know that they were started for the same run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/hosts/hostfile.h"

namespace dstrain {

struct LaunchFlags;

struct NodeCard {
  std::optional<int> node_rank;  ///< empty: whichever is free
  int num_nodes = 0;
  std::uint64_t config = 0;     ///< hash of the config's bytes
  std::uint64_t overrides = 0;  ///< hash of --set and what else changes it
  std::uint64_t job = 0;        ///< hash of --rdzv_id
  launcher::Host host;          ///< its name for itself, and its slots
};

/// Describes this node. Throws std::runtime_error where the config cannot be read.
NodeCard make_node_card(const LaunchFlags& flags,
                        std::optional<int> node_rank,
                        int num_nodes,
                        const launcher::Host& own);

/// One line, short enough for an agent's name. Throws launcher::UsageError where slots with too
/// many gaps make it too long.
std::string to_text(const NodeCard& card);
/// Returns nothing where the text is not a card.
std::optional<NodeCard> parse_node_card(std::string_view text);

/// The reason why a node cannot take part in the run that `leader` leads, as a sentence; empty if
/// it can.
std::string why_not(const NodeCard& card, const NodeCard& leader);

}  // namespace dstrain
