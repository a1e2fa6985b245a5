"""The command `top`: the requests (`top`), the output as text (`frame`, pure), and the terminal (`screen`)."""
