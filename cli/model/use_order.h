// Guesses from names alone in which order a model uses its parts.
#pragma once

#include <string>
#include <string_view>

namespace stagehand::cli::model {

// A key for a dotted name such as "model.layers.12": sorting keys by bytes sorts names into the usual order
// of a forward pass. Names are compared component by component; of two siblings the one whose name sounds
// earlier comes first (embeddings, encoders, the body, decoders, final norms, heads), then the smaller
// number, then the alphabet. It is a guess: neither format records the order.
std::string use_order_key(std::string_view dotted);

}  // namespace stagehand::cli::model
