// What a lock on a folder (folder_lock.h) leaves in its file, told from what others write there.
// For who asks whether a folder is one of muster's.
#pragma once

#include <string>

namespace muster {

// Whether a FolderLock wrote a text that begins like this.
bool is_lock_note(const std::string& text);

}  // namespace muster
