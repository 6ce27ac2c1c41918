// Folders that a program writes its results and logs to, where others may have been before it: in a
// place that everybody can write to, somebody may have made the folder for this user, or put links
// where logs will be. For launchers and `muster tasks`.
#pragma once

#include <fcntl.h>
#include <sys/types.h>

#include <string>

#include "muster/base/fd.h"

namespace muster {

// `folder` is this user's, or root's, or of whoever owns the folder above it, who has this user's
// trust already; so is every folder on the way to it from the current one, where it lies below
// that. What is not there yet is nobody's. Throws: failed_precondition naming the folder and its
// owner.
void check_folder_owner(const std::string& folder);

// "0600": the owner's, the group's and the others' digit, as chmod takes them.
std::string octal_mode(mode_t mode);

// Makes `top`, and the folders `below` it ("logs/0"), where they are not there yet; opens the last,
// through no link. Throws: failed_precondition, of a link and of another user's folder; io.
Fd make_folder_below(const std::string& top, const std::string& below);

// Makes or empties the ordinary file `path`, whose last name is looked up in `folder`, and is no
// link. Throws: failed_precondition, io.
Fd create_log(int folder, const std::string& path, int flags = O_WRONLY);

}  // namespace muster
