#include "tessera/core/comm/shm/segment.h"

#include <unistd.h>

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "tessera/core/process/file_descriptor.h"

namespace tessera::internal::shm {
namespace {

/// A rank waits for the end of a process only if that process has closed a segment.
TEST(Segment, IsClosedOnlyWhenItsCreatorHasClosedIt) {
  SharedRange range;
  {
    const auto segment = Segment::create(kPageBytes);
    range = segment->range(0);
    EXPECT_FALSE(Segment::is_closed(range));
    SharedRange wrong = range;
    ++wrong.segment.inode;
    EXPECT_THROW(Segment::open(wrong), c10::Error);
    EXPECT_FALSE(Segment::is_closed(wrong)) << "another file";
  }
  EXPECT_TRUE(Segment::is_closed(range));
  const FileDescriptor other(::dup2(STDERR_FILENO, range.fd));
  EXPECT_THROW(Segment::open(range), c10::Error);
  EXPECT_FALSE(Segment::is_closed(range)) << "another file at its number";
}

}  // namespace
}  // namespace tessera::internal::shm
