#include "engine/config/did_you_mean.h"

#include <catch2/catch.hpp>

#include "engine/config/unknown_keys.h"

namespace dstrain {

TEST_CASE("edit distance counts insertions, deletions, replacements and swaps", "[spec]") {
  CHECK(edit_distance("stage", "stage") == 0);
  CHECK(edit_distance("stge", "stage") == 1);
  CHECK(edit_distance("satge", "stage") == 1);
  CHECK(edit_distance("stages", "stage") == 1);
  CHECK(edit_distance("stale", "stage") == 1);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("weight-Decay", "weight_decay") == 0);
}

TEST_CASE("a mistyped key is answered with its nearest sibling", "[spec]") {
  CHECK(suggest_key("zero_optimization", "stge").text == "did you mean \"stage\"?");
  CHECK(suggest_key("", "gradient_cliping").text == "did you mean \"gradient_clipping\"?");
  CHECK(suggest_key("", "optimiser").text == "did you mean \"optimizer\"?");
  CHECK(suggest_key("model", "num_hidden_layer").text == "did you mean \"num_hidden_layers\"?");
  CHECK(suggest_key("training", "outputdir").text == "did you mean \"output_dir\"?");
}

TEST_CASE("a key at the wrong level is answered with its place", "[spec]") {
  CHECK(suggest_key("", "lr").text == "it belongs at \"optimizer.params.lr\"");
  CHECK(suggest_key("optimizer", "lr").text == "it belongs at \"optimizer.params.lr\"");
  CHECK(suggest_key("", "seed").text == "it belongs at \"training.seed\"");
  CHECK(suggest_key("", "hidden_size").text == "it belongs at \"model.hidden_size\"");
  CHECK(suggest_key("optimizer.params", "gradient_clipping").text ==
        "it belongs at \"gradient_clipping\"");
}

TEST_CASE("a foreign program's name is answered with ours", "[spec]") {
  CHECK(suggest_key("training", "learning_rate").text ==
        "the key for it is \"optimizer.params.lr\"");
  CHECK(suggest_key("", "max_steps").text == "the key for it is \"training.steps\"");
}

TEST_CASE("a name that resembles nothing gets no suggestion", "[spec]") {
  CHECK(suggest_key("", "qqqqqqqq").text.empty());
}

}  // namespace dstrain
