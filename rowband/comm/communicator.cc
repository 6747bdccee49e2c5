#include "rowband/comm/communicator.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>

#include "rowband/base/fail.h"

namespace rowband {
namespace {

// A reason longer than this is cut: it must not make a failing start slow, and nobody reads more.
constexpr std::size_t kMaxReason = 4096;
// Values are compared in full, and cut only in messages.
constexpr std::size_t kMaxShownValue = 256;

std::string cut(std::string_view text, std::size_t limit) {
  if (text.size() <= limit) return std::string(text);
  // Not in the middle of a UTF-8 sequence.
  while (limit > 0 && (static_cast<unsigned char>(text[limit]) & 0xC0u) == 0x80u) --limit;
  return fmt::format("{}... ({} bytes in all)", text.substr(0, limit), text.size());
}

// What every rank tells first: how long its text is, and a number that goes with it.
struct TextHead {
  std::uint64_t length = 0;
  std::uint64_t tag = 0;
};

struct Text {
  std::string body;
  std::uint64_t tag = 0;
};

// Every rank's text, by rank. One exchange when all are empty, two otherwise.
std::vector<Text> gather_texts(Communicator& comm, std::string_view text, std::uint64_t tag,
                               Deadline deadline) {
  const auto size = static_cast<std::size_t>(comm.size());
  const TextHead own{text.size(), tag};
  std::vector<TextHead> heads(size);
  comm.all_gather(&own, heads.data(), sizeof own, deadline);

  std::size_t longest = 0;
  for (const TextHead& head : heads) longest = std::max<std::size_t>(longest, head.length);
  std::vector<Text> texts(size);
  for (std::size_t rank = 0; rank < size; ++rank) texts[rank].tag = heads[rank].tag;
  if (longest == 0) return texts;

  std::string padded(text);
  padded.resize(longest);
  std::string all(size * longest, '\0');
  comm.all_gather(padded.data(), all.data(), longest, deadline);
  for (std::size_t rank = 0; rank < size; ++rank) {
    texts[rank].body = all.substr(rank * longest, heads[rank].length);
  }
  return texts;
}

void append_sized(std::string& out, std::string_view field) {
  const std::uint64_t length = field.size();
  out.append(reinterpret_cast<const char*>(&length), sizeof length);
  out.append(field);
}

// Takes one field off the front.
std::string_view take_sized(std::string_view& in) {
  std::uint64_t length = 0;
  if (in.size() < sizeof length) fail(ErrorCode::kInternal, "agreement: a field's length is cut");
  std::memcpy(&length, in.data(), sizeof length);
  in.remove_prefix(sizeof length);
  if (length > in.size()) {
    fail(ErrorCode::kInternal, "agreement: a field of {} bytes in a text with {} left", length,
         in.size());
  }
  const std::string_view field = in.substr(0, length);
  in.remove_prefix(length);
  return field;
}

// What two ranks differ in first, as a message; nothing when they agree.
struct Difference {
  std::size_t index = 0;
  std::string message;
};

std::optional<Difference> first_difference(std::string_view ours, std::string_view theirs,
                                           int rank) {
  for (std::size_t index = 0; !ours.empty() || !theirs.empty(); ++index) {
    if (ours.empty() || theirs.empty()) {
      std::string_view& longer = ours.empty() ? theirs : ours;
      return Difference{index, fmt::format("{} passed '{}', which {} did not",
                                           ours.empty() ? fmt::format("rank {}", rank) : "rank 0",
                                           take_sized(longer),
                                           ours.empty() ? "rank 0" : fmt::format("rank {}", rank))};
    }
    const std::string_view our_name = take_sized(ours);
    const std::string_view their_name = take_sized(theirs);
    if (our_name != their_name) {
      return Difference{index, fmt::format("rank 0 passed '{}' where rank {} passed '{}'", our_name,
                                           rank, their_name)};
    }
    const std::string_view our_value = take_sized(ours);
    const std::string_view their_value = take_sized(theirs);
    if (our_value != their_value) {
      return Difference{index, fmt::format("{}: rank 0 has {}, rank {} has {}", our_name,
                                           cut(our_value, kMaxShownValue), rank,
                                           cut(their_value, kMaxShownValue))};
    }
  }
  return std::nullopt;
}

}  // namespace

void Communicator::barrier(Deadline deadline) {
  const char here = 1;
  std::vector<char> all(static_cast<std::size_t>(size()));
  all_gather(&here, all.data(), 1, deadline);
}

void agree_on_success(Communicator& comm, std::string_view what, std::string_view failure,
                      ErrorCode code, Deadline deadline) {
  const auto texts =
      gather_texts(comm, cut(failure, kMaxReason), static_cast<std::uint64_t>(code), deadline);
  std::vector<std::string> reasons;
  std::uint64_t first_code = 0;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank].body.empty()) continue;
    if (reasons.empty()) first_code = texts[rank].tag;
    reasons.push_back(fmt::format("rank {}: {} failed: {}", rank, what, texts[rank].body));
  }
  if (!reasons.empty()) {
    fail(static_cast<ErrorCode>(first_code), "{}", fmt::join(reasons, "; "));
  }
}

void agree_on_values(Communicator& comm, std::string_view what,
                     const std::vector<NamedValue>& values, Deadline deadline) {
  std::string own;
  for (const NamedValue& value : values) {
    append_sized(own, value.name);
    append_sized(own, value.value);
  }
  const auto texts = gather_texts(comm, own, 0, deadline);
  std::optional<Difference> first;
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    auto difference = first_difference(texts[0].body, texts[rank].body, static_cast<int>(rank));
    if (difference && (!first || difference->index < first->index)) first = std::move(difference);
  }
  if (first) {
    fail(ErrorCode::kDisagreement, "{}: the ranks disagree: {}", what, first->message);
  }
}

}  // namespace rowband
