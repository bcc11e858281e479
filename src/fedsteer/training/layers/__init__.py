"""Known layers: forward and backward of many clients at once, by formula.

known           which networks are stacks of known layers
formula         the gradient of such a network
basic           linear, convolution, flatten, and what all layers share
residual        batch norm, the residual block, the mean over pixels
convolution     stacked convolutions: by torch, and by Triton kernels (`*_kernels`)
normalisation   stacked batch norm: likewise
"""
