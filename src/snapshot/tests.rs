//! Files that are whole, torn, flipped, cut and taken up again.
