// Guesses from names in which order a model uses its parts.
#pragma once

#include <string>
#include <string_view>

namespace stagehand::cli::model {

// A key for a dotted name such as "model.layers.12": sorting keys by bytes sorts names into the usual order
// of a forward pass. Names are compared component by component; siblings are sorted by
// the stage that their names suggest (embeddings, encoders, the body, decoders, final norms, heads), then by number,
// then by the alphabet. It is a guess, because neither format records the order.
std::string use_order_key(std::string_view dotted);

}  // namespace stagehand::cli::model
