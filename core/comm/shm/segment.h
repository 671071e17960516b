#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace tessera::internal::shm {

/// Segments consist of whole pages.
inline constexpr int64_t kPageBytes = 4096;

/// The identity of a segment. No other file of this host has the same device and inode as long as
/// any process maps the segment or has it open. Plain data.
struct SegmentId {
  uint64_t device = 0;
  uint64_t inode = 0;

  friend bool operator==(const SegmentId&, const SegmentId&) = default;

  struct Hash {
    size_t operator()(const SegmentId& id) const { return id.inode ^ (id.device << 48); }
  };
};

/// The location of a piece of shared memory, valid in all processes of a host. Plain data, because
/// it is posted in shared memory.
struct SharedRange {
  SegmentId segment;
  uint64_t offset_bytes = 0;
  uint64_t segment_bytes = 0;  ///< the segment's room_bytes(); 0: no range
  int32_t pid = 0;             ///< the process that created the segment
  int32_t fd = -1;             ///< the segment's descriptor in that process

  /// Returns five numbers, separated by spaces: all fields but the offset.
  std::string to_text() const;
  /// Reads the text of to_text(). Returns nullopt unless the text is five valid numbers with a
  /// valid process and descriptor. The offset is 0.
  static std::optional<SharedRange> from_text(const std::string& text);
};

/// One memfd mapped into this process. The threads of a process share a single mapping of each
/// segment: with two mappings of one memfd the thread sanitizer would miss races.
///
/// In a child of fork() the mapping is private (copy on write), or all zeros if the segment's
/// creator has gone. See Note [Fork].
class Segment : public std::enable_shared_from_this<Segment> {
 public:
  /// Local. Makes a segment of `bytes` (rounded up to pages), backed by memory from the start,
  /// close-on-exec. The creator can enlarge it with grow(), so mappings here and in peers cover the
  /// larger of `room_bytes` and `bytes`. The room beyond `bytes` takes address space, but no
  /// memory. Throws c10::Error that names the size if there is no space.
  static std::shared_ptr<Segment> create(int64_t bytes, int64_t room_bytes = 0);

  /// Local. Returns the segment that `range` lies in; its creator must be alive. Throws c10::Error
  /// if the segment cannot be mapped, or if its descriptor now belongs to another file.
  static std::shared_ptr<Segment> open(const SharedRange& range);

  /// Local. Maps the whole segment that `range` lies in, but writes stay with this process (copy on
  /// write). The segment's creator must be alive. Throws as open() does.
  static std::shared_ptr<char> map_privately(const SharedRange& range);

  /// Local. Returns true if the process that created the segment no longer has its descriptor,
  /// because the process is ending or has destroyed the segment. Returns false if open() fails for
  /// another reason.
  static bool is_closed(const SharedRange& range);

  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  /// Local. Adds `bytes` of memory (whole pages) at the end, up to room_bytes() in all. Peers see
  /// the memory in their mappings. For the creator only, one thread at a time. Throws as create()
  /// does.
  void grow(int64_t bytes);

  char* data() const { return data_; }
  /// Size of the mapping. Only the part that has memory may be touched.
  int64_t room_bytes() const { return room_bytes_; }
  int fd() const { return fd_; }

  /// Returns the location of byte `offset_bytes` of this segment, for peers. For the creator only.
  SharedRange range(int64_t offset_bytes) const;

 private:
  struct Mapped;

  Segment(SegmentId id, int fd, char* data, int64_t memory_bytes, int64_t room_bytes,
          std::string path = "");
  void make_private() noexcept;

  const SegmentId id_;
  const int pid_;
  const int fd_;            // descriptor of the memfd; -1 if another process made it
  const std::string path_;  // the creator's descriptor in /proc; "" in the creator
  char* const data_;
  // Size of the part that has memory; known only to the creator, 0 in peers.
  int64_t memory_bytes_;
  const int64_t room_bytes_;
  bool is_private_ = false;  // true in a child of fork(), after make_private()
};

}  // namespace tessera::internal::shm
