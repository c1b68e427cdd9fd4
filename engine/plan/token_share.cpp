#include "engine/plan/token_share.h"

#include "kernels/core/check.h"

namespace dstrain {

Range ContextShape::ring_chunk(int of_ring_rank, int chunk, std::int64_t sequence) const {
  check(sequence % unit() == 0, "sequences of {} tokens among {} ranks in {} chunks each", sequence,
        ranks(), chunks());
  const std::int64_t tokens = sequence / (std::int64_t{1} * ring * chunks());
  const std::int64_t place = chunk == 0 ? of_ring_rank : 2 * ring - 1 - of_ring_rank;
  return {place * tokens, (place + 1) * tokens};
}

Range ContextShape::chunk(int chunk, std::int64_t sequence) const {
  const Range all = ring_chunk(ring_rank, chunk, sequence);
  const std::int64_t tokens = all.size() / heads;
  return {all.begin + heads_rank * tokens, all.begin + (heads_rank + 1) * tokens};
}

Range ContextShape::chunks_seen(int queries,
                                int keys,
                                std::int64_t sequence,
                                std::int64_t window) const {
  Range seen{0, 0};
  for (int key = 0; key < chunks(); ++key) {
    for (int query = 0; query < chunks(); ++query) {
      if (sees(ring_chunk(queries, query, sequence), ring_chunk(keys, key, sequence), window)) {
        seen = {seen.size() == 0 ? key : seen.begin, key + 1};
      }
    }
  }
  return seen;
}

bool sees(const Range& queries, const Range& keys, std::int64_t window) {
  const bool is_before = keys.begin < queries.end;
  return is_before && (window == 0 || keys.end > queries.begin + 1 - window);
}

}  // namespace dstrain
