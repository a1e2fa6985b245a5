"""The command `top`: what is asked (`top`), how it looks (`frame`, pure), and a terminal to draw on (`screen`)."""
